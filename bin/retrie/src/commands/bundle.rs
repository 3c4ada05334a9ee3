//! `retrie bundle`: blocks with the state they touch.

use crate::{
    args::{HttpArgs, witness_opener},
    meter::TransferMeter,
    output::{CommandOutput, grouped, say},
};
use eyre::{Context, bail};
use retrie_backends::find;
use retrie_chainspec::parse_chain;
use retrie_pipeline::replay::BundleMaker;
use retrie_sources::{Bundle, BundleFolder, RpcClient, SourceLocation};
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// `retrie bundle ...`
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum BundleCommand {
    /// Make bundles for `retrie replay` from any archive node.
    Make(MakeArgs),
}

impl BundleCommand {
    /// Runs the command.
    pub(crate) fn run(self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        match self {
            Self::Make(args) => args.run(stop),
        }
    }
}

/// Arguments of `retrie bundle make`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MakeArgs {
    /// The chain: mainnet, sepolia, holesky, hoodi, dev, or a genesis JSON file.
    #[arg(long, value_name = "CHAIN_OR_PATH", default_value = "mainnet")]
    chain: String,
    /// JSON-RPC endpoint (http or https) of an archive node of the chain. Only `eth_` methods are
    /// needed.
    #[arg(long, value_name = "URL")]
    rpc: String,
    /// First block.
    #[arg(long, value_name = "NUMBER")]
    from: u64,
    /// Last block.
    #[arg(long, value_name = "NUMBER")]
    to: u64,
    #[command(flatten)]
    http: HttpArgs,
    /// Where to write the bundles, as NUMBER.json.gz: a folder, or a prefix of an object store
    /// (s3://, gs://). Its SHA256SUMS is updated. Existing bundles that replay are kept.
    #[arg(value_name = "DIR_OR_URL")]
    folder: PathBuf,
}

impl MakeArgs {
    fn run(self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        if self.from > self.to {
            bail!("--from {} is after --to {}", self.from, self.to);
        }
        let spec = parse_chain(&self.chain)?;
        let client = RpcClient::new(&self.rpc, self.http.client(stop));
        client.check_chain(&spec)?;
        let opener = witness_opener()?;
        let maker = BundleMaker {
            client: &client,
            spec,
            backend: find("raw")?.make_temporary()?,
            opener: opener.as_ref().and_then(|backend| backend.extensions().partial_state),
        };
        let mut folder = BundleFolder::open(self.http.stores(stop).locate(&self.folder)?)?;
        let made = self.make_all(&maker, &mut folder, stop);
        // Runs also after an error: the bundles made so far count.
        let finished = folder.finish();
        made?;
        Ok(finished?)
    }

    fn make_all(
        &self,
        maker: &BundleMaker<'_>,
        folder: &mut BundleFolder,
        stop: &AtomicBool,
    ) -> eyre::Result<()> {
        let out = CommandOutput::default();
        let total = self.to - self.from + 1;
        let mut meter = TransferMeter::blocks(total);
        let (mut made, mut there) = (0, 0);
        for number in self.from..=self.to {
            let outcome = if stop.load(Ordering::Relaxed) {
                Err(eyre::eyre!("stopped"))
            } else {
                make_one(maker, folder, number)
            };
            let (line, was_there) = match outcome {
                Ok(done) => done,
                // A bundle file is complete or missing.
                Err(_) if stop.load(Ordering::Relaxed) => {
                    meter.finish();
                    bail!("stopped before block {number}; run the same command again to go on");
                }
                Err(error) => {
                    meter.finish();
                    return Err(error);
                }
            };
            *(if was_there { &mut there } else { &mut made }) += 1;
            meter.suspend(|| -> eyre::Result<()> {
                say!(out, "{line}");
                Ok(())
            })?;
            meter.update(number - self.from + 1, Some(total));
        }
        meter.finish();
        say!(out, "{} bundles made, {} were there", grouped(made), grouped(there));
        Ok(())
    }
}

/// Makes the bundle of a block. Returns a line about it, and whether it existed already.
fn make_one(
    maker: &BundleMaker<'_>,
    folder: &mut BundleFolder,
    number: u64,
) -> eyre::Result<(String, bool)> {
    let file = folder.bundle(number);
    if folder.has(number) {
        match check_existing(maker, &file, number)? {
            Ok(bundle) => {
                folder.add_existing(number)?;
                return Ok((describe(&bundle, "was there, replays"), true));
            }
            Err(error) => tracing::warn!("{error:#}; it is made again"),
        }
    }
    let made = maker.make(number, file.name())?;
    folder.write(number, &made.json)?;
    let proof = if made.proved {
        "made, replays, state proved"
    } else {
        "made, replays; the node gives no proofs of its state"
    };
    Ok((describe(&made.bundle, proof), false))
}

/// Checks an existing bundle: `Ok` if it replays, or what is wrong with it.
///
/// # Errors
///
/// If the bundle is of another block than the node's: this command must not replace it.
fn check_existing(
    maker: &BundleMaker<'_>,
    file: &SourceLocation,
    number: u64,
) -> eyre::Result<eyre::Result<Bundle>> {
    let checked = || -> eyre::Result<Bundle> {
        let bundle = Bundle::load(file)?;
        maker.check(&bundle).wrap_err_with(|| file.display().to_string())?;
        Ok(bundle)
    };
    let bundle = match checked() {
        Ok(bundle) => bundle,
        Err(error) => return Ok(Err(error)),
    };
    let (hash, _) = maker.client.header(number)?;
    if bundle.hash != hash {
        bail!(
            "{} holds block {} ({}), which is not block {number} of the node ({hash}): choose \
             another folder",
            file.display(),
            bundle.number,
            bundle.hash
        );
    }
    Ok(Ok(bundle))
}

fn describe(bundle: &Bundle, what: &str) -> String {
    let (accounts, slots) = bundle.pre().map_or((0, 0), |pre| {
        let slots = pre.values().flatten().map(|account| account.storage.len()).sum();
        (pre.len(), slots)
    });
    format!(
        "{}  {}  {} txs  {} gas  {accounts} accounts  {slots} slots  {what}",
        bundle.file.display(),
        bundle.fork,
        bundle.tx_count,
        grouped(bundle.gas_used),
    )
}
