//! Tracers in JavaScript: what they may take, and how they end.

use revm_inspectors::tracing::js::{JsInspector, JsInspectorInterrupt};
use std::time::Instant;

/// A tracer that has no result once one of its functions has failed, as in geth.
///
/// revm-inspectors only reverts the frame in which a function fails, so that an incomplete trace
/// would follow. That a function exceeded a limit (of iterations, of recursion) no `catch` in
/// JavaScript sees; so what counts is whether each call came to its end.
pub(super) fn failing_whole(code: &str) -> String {
    format!(
        r#"(function (tracer) {{
            let running = null, failed = false, failure;
            const whole = {{}};
            for (const name of ["setup", "enter", "exit", "step", "fault", "result"]) {{
                if (typeof tracer[name] !== "function") {{
                    if (name in tracer) whole[name] = tracer[name];
                    continue;
                }}
                whole[name] = function (a, b) {{
                    if (failed) throw failure;
                    if (running !== null) {{
                        throw new Error("the tracer's " + running + " exceeded a limit of iterations or recursion");
                    }}
                    running = name;
                    try {{
                        const value = tracer[name](a, b);
                        running = null;
                        return value;
                    }} catch (error) {{
                        failed = true;
                        failure = error;
                        throw error;
                    }}
                }};
            }}
            return whole;
        }})({code}
        )"#
    )
}

/// Ends a tracer at the deadline of its execution, as the execution itself looks at the clock only
/// between many steps.
pub(super) fn interrupted_at(deadline: Instant, inspector: JsInspector) -> JsInspector {
    let interrupt = JsInspectorInterrupt::new();
    let late = interrupt.clone();
    tokio::spawn(async move {
        tokio::time::sleep_until(deadline.into()).await;
        late.interrupt();
    });
    inspector.with_interrupt(interrupt)
}
