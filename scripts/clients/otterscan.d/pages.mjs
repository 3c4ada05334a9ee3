// Opens pages in a headless Chromium, waits for their texts, and takes a screenshot of each.
//
//     node pages.mjs CHROMIUM PLAN
//
// PLAN is a JSON file: {origin, folder, seconds, pages: [{name, path, texts}]}. Letter case does not count. A
// line for each page; exit code 1 if a text is missing.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { openPage } from '../../../crates/light-client/ts/page/browser.mjs';

const [chromium, file] = process.argv.slice(2);
const { origin, folder, seconds, pages } = JSON.parse(readFileSync(file, 'utf8'));
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const { evaluate, send, close } = await openPage(chromium, `${origin}/`);
let failures = 0;
try {
  const size = { width: 1400, height: 1100, deviceScaleFactor: 1, mobile: false };
  await send('Emulation.setDeviceMetricsOverride', size);
  for (const { name, path, texts } of pages) {
    await send('Page.navigate', { url: `${origin}${path}` });
    const deadline = Date.now() + 1000 * seconds;
    let missing = texts;
    while (missing.length > 0 && Date.now() < deadline) {
      await pause(200);
      // While a page is replaced there is no context to evaluate in.
      const shown = await evaluate('document.body?.innerText ?? ""').catch(() => '');
      const flat = shown.toLowerCase().replaceAll(/\s+/g, ' ');
      missing = texts.filter((text) => !flat.includes(text.toLowerCase()));
    }
    await pause(500);
    const { data } = await send('Page.captureScreenshot', { format: 'png' });
    const image = join(folder, `${name}.png`);
    writeFileSync(image, Buffer.from(data, 'base64'));
    failures += missing.length > 0 ? 1 : 0;
    console.log(missing.length === 0 ? `ok: ${image}` : `FAILED: ${image} does not show ${JSON.stringify(missing)}`);
  }
} finally {
  await close();
}
process.exitCode = failures > 0 ? 1 : 0;
