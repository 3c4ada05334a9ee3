//! Files with secrets: the JWT secret shared with the consensus client, and the node key.

use alloy_primitives::hex;
use alloy_rpc_types_engine::JwtSecret;
use eyre::{Context, eyre};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    path::Path,
};

/// The Engine API's secret in `file`; created if missing, for the consensus client to read.
pub(super) fn jwt_secret(file: &Path) -> eyre::Result<JwtSecret> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return make_jwt_secret(file),
        Err(error) => {
            return Err(error)
                .wrap_err_with(|| format!("reading the JWT secret {}", file.display()));
        }
    };
    warn_if_shared(file, "the JWT secret");
    JwtSecret::from_hex(text.trim()).map_err(|_| {
        eyre!(
            "the JWT secret {} is not 32 bytes in hex; remove it, and a new one is made",
            file.display()
        )
    })
}

fn make_jwt_secret(file: &Path) -> eyre::Result<JwtSecret> {
    let secret = JwtSecret::random();
    write_secret(file, &hex::encode(secret.as_bytes()))
        .wrap_err_with(|| format!("writing a new JWT secret to {}", file.display()))?;
    tracing::info!("made a JWT secret for the consensus client: {}", file.display());
    Ok(secret)
}

/// Writes a file that only its owner can read. After a kill the file is complete or missing: half a
/// secret would be refused at every start.
fn write_secret(file: &Path, text: &str) -> io::Result<()> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    fs::create_dir_all(folder)?;
    let aside = file.with_added_extension("new");
    // A file left by a kill may have another mode.
    match fs::remove_file(&aside) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut written = options.open(&aside)?;
    written.write_all(text.as_bytes())?;
    written.sync_all()?;
    fs::rename(&aside, file)?;
    // Makes the name durable. Some systems cannot open folders.
    File::open(folder).and_then(|folder| folder.sync_all()).or(Ok(()))
}

/// Warns if other users of this machine can read the secret. `what` names the secret.
pub(super) fn warn_if_shared(file: &Path, what: &str) {
    if let Some(mode) = shared_mode(file) {
        tracing::warn!(
            "{what} {} can be read by others on this machine (mode {mode:04o}): chmod 600, and make a \
             new one if they are not to be trusted",
            file.display()
        );
    }
}

/// The file's mode if its group or all users can read it.
fn shared_mode(file: &Path) -> Option<u32> {
    #[cfg(unix)]
    {
        let metadata = fs::metadata(file).ok()?;
        let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o7777;
        (mode & 0o044 != 0).then_some(mode)
    }
    #[cfg(not(unix))]
    None
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    fn set_mode(file: &Path, mode: u32) {
        fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
    }

    fn mode(file: &Path) -> u32 {
        fs::metadata(file).unwrap().permissions().mode() & 0o777
    }

    /// The file was once written in place: a node killed meanwhile did not start again.
    #[test]
    fn a_new_secret_appears_whole_and_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new").join("jwt.hex");
        let made = jwt_secret(&file).unwrap();
        assert_eq!(mode(&file), 0o600);
        assert_eq!(jwt_secret(&file).unwrap().as_bytes(), made.as_bytes());
        let names = fs::read_dir(file.parent().unwrap()).unwrap().count();
        assert_eq!(names, 1, "nothing is left beside it");

        // A killed process has left half a secret under the temporary name, and no secret.
        fs::remove_file(&file).unwrap();
        let aside = file.with_added_extension("new");
        fs::write(&aside, "0123").unwrap();
        set_mode(&aside, 0o644);
        let again = jwt_secret(&file).unwrap();
        assert_eq!(jwt_secret(&file).unwrap().as_bytes(), again.as_bytes());
        assert_eq!((mode(&file), aside.exists()), (0o600, false));
    }

    #[test]
    fn half_a_secret_is_refused_with_the_way_out_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("jwt.hex");
        for text in ["", "0123"] {
            fs::write(&file, text).unwrap();
            let error = jwt_secret(&file).unwrap_err().to_string();
            assert!(error.contains("remove it"), "{error}");
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
    }

    #[test]
    fn a_secret_that_others_may_read_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("jwt.hex");
        jwt_secret(&file).unwrap();
        for (mode, shared) in [
            (0o600, None),
            (0o400, None),
            (0o711, None),
            (0o640, Some(0o640)),
            (0o604, Some(0o604)),
            (0o644, Some(0o644)),
        ] {
            set_mode(&file, mode);
            assert_eq!(shared_mode(&file), shared, "{mode:o}");
        }
        assert_eq!(shared_mode(&folder.path().join("none")), None);
    }
}
