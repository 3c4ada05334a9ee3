//! Opening files while file descriptors may have run out.

use std::{
    io, thread,
    time::{Duration, Instant},
};

/// How long to wait for a descriptor.
const PATIENCE: Duration = Duration::from_secs(30);
/// The first pause between two tries, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];

/// Opens a file or a directory, and tries again for 30 seconds while the process or the system has
/// no free descriptor (`EMFILE`, `ENFILE`). Many inbound connections can use up the descriptors for
/// a while, and a file that a store cannot open ends the node.
///
/// # Errors
/// The error of `open`.
pub fn open_with_retry<T>(open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    open_within(PATIENCE, open)
}

fn open_within<T>(patience: Duration, mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let [mut pause, longest] = PAUSES;
    let begun = Instant::now();
    loop {
        match open() {
            Err(error) if is_out_of_descriptors(&error) && begun.elapsed() < patience => {
                if pause == PAUSES[0] {
                    tracing::warn!(
                        "no more files can be opened; a store waits for a descriptor (raise the limit: \
                         `ulimit -n`, or LimitNOFILE of systemd)"
                    );
                }
                thread::sleep(pause);
                pause = (pause * 2).min(longest);
            }
            done => return done,
        }
    }
}

/// Whether the process (`EMFILE`) or the system (`ENFILE`) has no free file descriptor.
fn is_out_of_descriptors(error: &io::Error) -> bool {
    // The numbers are the same on all Unix systems.
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    cfg!(unix) && matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A flush that found no descriptor once ended the node: 1,000 idle connections were enough.
    #[test]
    fn what_finds_no_descriptor_is_tried_again_and_other_errors_are_not() {
        for code in [23, 24] {
            let mut left = 4;
            let opened = open_with_retry(|| {
                left -= 1;
                if left > 0 { Err(io::Error::from_raw_os_error(code)) } else { Ok(left) }
            });
            assert_eq!(opened.unwrap(), 0);
        }
        let mut tries = 0;
        let missing = open_with_retry(|| {
            tries += 1;
            Err::<(), _>(io::Error::from(io::ErrorKind::NotFound))
        });
        assert_eq!((missing.unwrap_err().kind(), tries), (io::ErrorKind::NotFound, 1));
        let never = open_within(Duration::from_millis(20), || {
            Err::<(), _>(io::Error::from_raw_os_error(24))
        });
        assert!(is_out_of_descriptors(&never.unwrap_err()), "it ends with the reason");
    }
}
