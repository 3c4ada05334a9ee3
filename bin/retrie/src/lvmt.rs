//! The backend `lvmt` on the command line: its flags, and where its public parameters come from.

use crate::registry::Purpose;
use eyre::bail;
use retrie_bench::cache::user_cache;
use retrie_state::Backend;
use retrie_storage_lvmt::{Lvmt, Params, ParamsError, ParseShardError, ProofShard};
use std::{
    fs, io,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Height of development parameters: that of the paper.
const HEIGHT: u8 = 16;

/// Flags of `lvmt`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct LvmtArgs {
    /// Public parameters of `lvmt`, a file that `retrie params lvmt` has made.
    #[arg(long = "lvmt.params", value_name = "FILE")]
    params: Option<PathBuf>,
    /// Let `lvmt` use development parameters on a public network. Everybody can forge proofs under
    /// them. Elsewhere they are the default.
    #[arg(long = "lvmt.insecure-dev")]
    insecure_dev: bool,
    /// What `lvmt` is able to prove: `none`, `all`, or a part of the keys such as `3/16`, where the
    /// first is 0 and the number of parts a power of two.
    #[arg(long = "lvmt.proof-shard", value_name = "SHARD", default_value = "none")]
    proof_shard: ProofShard,
}

/// The backend, for this purpose.
pub(crate) fn backend(args: &LvmtArgs, purpose: Purpose<'_>) -> eyre::Result<Arc<dyn Backend>> {
    let params = args.params(purpose)?;
    if params.is_insecure() {
        tracing::warn!(
            "lvmt uses development parameters: everybody knows their secret and can forge proofs"
        );
    }
    Ok(Arc::new(Lvmt::new(Arc::new(params), args.proof_shard)?))
}

impl LvmtArgs {
    /// The same with another proof shard.
    pub(crate) fn with_proof_shard(&self, shard: &str) -> Result<Self, ParseShardError> {
        Ok(Self { proof_shard: shard.parse()?, ..self.clone() })
    }

    fn params(&self, purpose: Purpose<'_>) -> eyre::Result<Params> {
        match (purpose, &self.params) {
            (Purpose::Trial, None) => self.development(),
            (Purpose::Trial, Some(file)) => Ok(Params::load(file)?),
            (Purpose::New(chain), None) => {
                if chain.is_public() && !self.insecure_dev {
                    bail!(
                        "backend lvmt on {} needs public parameters: pass --lvmt.params FILE, which \
                         `retrie params lvmt --ptau CEREMONY -o FILE` makes; --lvmt.insecure-dev \
                         forces development ones, under which everybody can forge proofs",
                        chain.name()
                    );
                }
                self.development()
            }
            (Purpose::New(chain), Some(file)) => {
                let params = Params::load(file)?;
                if params.is_insecure() && chain.is_public() && !self.insecure_dev {
                    bail!(
                        "{} holds development parameters, under which everybody can forge proofs: \
                         make others for {} with `retrie params lvmt --ptau CEREMONY -o FILE`; \
                         --lvmt.insecure-dev forces these",
                        file.display(),
                        chain.name()
                    );
                }
                Ok(params)
            }
            // What it was made with has been settled then.
            (Purpose::Existing { datadir, params: digest }, None) => {
                let params = plain_development()?;
                if params.digest() != digest {
                    bail!(
                        "datadir {} holds state under the lvmt parameters {digest}: pass the file \
                         with these as --lvmt.params FILE",
                        datadir.display()
                    );
                }
                if self.proof_shard == ProofShard::None { Ok(params) } else { self.development() }
            }
            (Purpose::Existing { datadir, params: digest }, Some(file)) => {
                let params = Params::load(file)?;
                if params.digest() != digest {
                    bail!(
                        "datadir {} holds state under the lvmt parameters {digest}, but {} has {}: \
                         pass --lvmt.params with the file it was made with",
                        datadir.display(),
                        file.display(),
                        params.digest()
                    );
                }
                Ok(params)
            }
        }
    }

    fn development(&self) -> eyre::Result<Params> {
        match self.proof_shard {
            ProofShard::None => plain_development(),
            _ => proving_development(HEIGHT, user_cache().map(|folder| folder.join("lvmt"))),
        }
    }
}

/// Development parameters without the tables for proofs: a matter of a second.
fn plain_development() -> eyre::Result<Params> {
    Ok(Params::insecure_dev(HEIGHT, false, &|_, _, _| ControlFlow::Continue(()))?)
}

/// Development parameters with the tables for proofs. Making them takes seconds on all cores, so
/// they are kept in `folder`.
fn proving_development(height: u8, folder: Option<PathBuf>) -> eyre::Result<Params> {
    let make = || Params::insecure_dev(height, true, &|_, _, _| ControlFlow::Continue(()));
    let Some(folder) = folder else { return Ok(make()?) };
    let file = folder.join(format!("insecure-dev-{height}.params"));
    match Params::load(&file) {
        Ok(params) if fits(&params, height) => return Ok(params),
        Ok(_) => tracing::warn!("{} holds other parameters; making them again", file.display()),
        Err(ParamsError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
        Err(why) => tracing::warn!("{why}; making them again"),
    }
    tracing::info!("making lvmt's development parameters with the tables for proofs");
    let params = make()?;
    if let Err(why) = keep(&params, &file) {
        tracing::warn!("the parameters are not kept for the next time: {why}");
    }
    Ok(params)
}

fn fits(params: &Params, height: u8) -> bool {
    params.is_insecure() && params.height() == height && params.has_quotients()
}

fn keep(params: &Params, file: &Path) -> eyre::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    Ok(params.write(file)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn development_parameters_are_made_once_and_again_when_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("lvmt");
        let file = cache.join("insecure-dev-3.params");
        let made = proving_development(3, Some(cache.clone())).unwrap();
        assert!(fits(&made, 3) && !fits(&made, 4));
        let written = fs::read(&file).unwrap();
        let modified = fs::metadata(&file).unwrap().modified().unwrap();
        let loaded = proving_development(3, Some(cache.clone())).unwrap();
        assert_eq!(loaded.digest(), made.digest());
        assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), modified);
        // Truncated, foreign, and without a folder to keep them in.
        fs::write(&file, &written[..written.len() / 2]).unwrap();
        assert_eq!(proving_development(3, Some(cache.clone())).unwrap().digest(), made.digest());
        assert_eq!(fs::read(&file).unwrap(), written);
        let other = Params::insecure_dev(4, true, &|_, _, _| ControlFlow::Continue(())).unwrap();
        other.write(&file).unwrap();
        assert_eq!(proving_development(3, Some(cache)).unwrap().digest(), made.digest());
        assert_eq!(proving_development(3, None).unwrap().digest(), made.digest());
    }
}
