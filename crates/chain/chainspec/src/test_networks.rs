//! Fork schedules by the `network` names of the public test suites.
//!
//! `ethereum/tests` and `execution-spec-tests` name the rules of a test by one word: a fork that
//! is active from genesis (`Cancun`), or a change (`BerlinToLondonAt5`, `CancunToPragueAtTime15k`,
//! `ArrowGlacierToParisAtDiffC0000`). Blob parameters stand in the test's own `config`; see
//! [`crate::blobs::blob_schedule`].

use alloy_hardforks::{EthereumHardfork as Fork, ForkCondition};
use alloy_primitives::U256;

use crate::DaoFork;

/// Forks of one test network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestNetwork {
    /// Activation of each fork.
    pub forks: Vec<(Fork, ForkCondition)>,
    /// DAO fork, for the networks that cross it.
    pub dao_fork: Option<DaoFork>,
}

impl TestNetwork {
    /// Activation time in seconds of a fork by time, `None` if it is not scheduled.
    pub fn activation_time(&self, fork: Fork) -> Option<u64> {
        self.forks
            .iter()
            .find(|(found, _)| *found == fork)
            .and_then(|(_, condition)| condition.as_timestamp())
    }
}

/// The fork schedule of a `network` name, `None` if the name is unknown.
pub fn test_network(name: &str) -> Option<TestNetwork> {
    let (base, change) = match name.split_once("To") {
        None => (name, None),
        Some((from, rest)) => (from, Some(rest.split_once("At")?)),
    };
    let base = fork_by_name(base)?;
    let mut forks: Vec<_> = PROTOCOL_ORDER
        .iter()
        .filter(|fork| **fork <= base && !is_skipped(**fork, base))
        .map(|fork| (*fork, at_genesis(*fork)))
        .collect();
    let mut dao_fork = None;
    if let Some((target, when)) = change {
        let when = ActivationPoint::parse(when)?;
        if target == "Dao" || target == "DaoFork" {
            let ActivationPoint::Block(block) = when else { return None };
            dao_fork = Some(DaoFork { block, support: true });
        } else {
            let target = fork_by_name(target)?;
            let new = PROTOCOL_ORDER
                .iter()
                .filter(|fork| **fork > base && **fork <= target && !is_skipped(**fork, target));
            for fork in new {
                forks.push((*fork, when.condition(*fork)?));
            }
        }
    }
    Some(TestNetwork { forks, dao_fork })
}

const PROTOCOL_ORDER: [Fork; 24] = [
    Fork::Homestead,
    Fork::Tangerine,
    Fork::SpuriousDragon,
    Fork::Byzantium,
    Fork::Constantinople,
    Fork::Petersburg,
    Fork::Istanbul,
    Fork::MuirGlacier,
    Fork::Berlin,
    Fork::London,
    Fork::ArrowGlacier,
    Fork::GrayGlacier,
    Fork::Paris,
    Fork::Shanghai,
    Fork::Cancun,
    Fork::Prague,
    Fork::Osaka,
    Fork::Bpo1,
    Fork::Bpo2,
    Fork::Bpo3,
    Fork::Bpo4,
    Fork::Bpo5,
    Fork::Amsterdam,
    Fork::Bogota,
];

/// The glacier forks change only the difficulty bomb: the test networks `London` and `Paris` do
/// not schedule them. A test network schedules BPO3 to BPO5 only where its name has that fork.
fn is_skipped(fork: Fork, target: Fork) -> bool {
    let glacier = matches!(fork, Fork::ArrowGlacier | Fork::GrayGlacier);
    let unused_bpo = matches!(fork, Fork::Bpo3 | Fork::Bpo4 | Fork::Bpo5) && fork != target;
    (glacier && fork != target && !matches!(target, Fork::GrayGlacier)) || unused_bpo
}

fn fork_by_name(name: &str) -> Option<Fork> {
    Some(match name {
        "Frontier" => Fork::Frontier,
        "Homestead" => Fork::Homestead,
        "EIP150" | "Tangerine" => Fork::Tangerine,
        "EIP158" | "SpuriousDragon" => Fork::SpuriousDragon,
        "Byzantium" => Fork::Byzantium,
        "Constantinople" => Fork::Constantinople,
        "ConstantinopleFix" | "Petersburg" => Fork::Petersburg,
        "Istanbul" => Fork::Istanbul,
        "MuirGlacier" => Fork::MuirGlacier,
        "Berlin" => Fork::Berlin,
        "London" => Fork::London,
        "ArrowGlacier" => Fork::ArrowGlacier,
        "GrayGlacier" => Fork::GrayGlacier,
        "Merge" | "Paris" => Fork::Paris,
        "Shanghai" => Fork::Shanghai,
        "Cancun" => Fork::Cancun,
        "Prague" => Fork::Prague,
        "Osaka" => Fork::Osaka,
        "BPO1" => Fork::Bpo1,
        "BPO2" => Fork::Bpo2,
        "BPO3" => Fork::Bpo3,
        "BPO4" => Fork::Bpo4,
        "BPO5" => Fork::Bpo5,
        "Amsterdam" => Fork::Amsterdam,
        _ => return None,
    })
}

fn at_genesis(fork: Fork) -> ForkCondition {
    if fork == Fork::Paris {
        paris_at(U256::ZERO)
    } else if fork > Fork::Paris {
        ForkCondition::ZERO_TIMESTAMP
    } else {
        ForkCondition::ZERO_BLOCK
    }
}

fn paris_at(ttd: U256) -> ForkCondition {
    // Test genesis blocks have a difficulty below every terminal one except zero.
    crate::ChainSpec::paris_condition(ttd, U256::ZERO, None)
}

enum ActivationPoint {
    Block(u64),
    Time(u64),
    Difficulty(U256),
}

impl ActivationPoint {
    fn parse(text: &str) -> Option<Self> {
        if let Some(time) = text.strip_prefix("Time") {
            return match time.strip_suffix('k') {
                Some(thousands) => thousands.parse::<u64>().ok()?.checked_mul(1000),
                None => time.parse().ok(),
            }
            .map(Self::Time);
        }
        if let Some(difficulty) = text.strip_prefix("Diff") {
            return U256::from_str_radix(difficulty, 16).ok().map(Self::Difficulty);
        }
        text.parse().ok().map(Self::Block)
    }

    fn condition(&self, fork: Fork) -> Option<ForkCondition> {
        match self {
            Self::Block(at) if fork < Fork::Paris => Some(ForkCondition::Block(*at)),
            Self::Time(at) if fork > Fork::Paris => Some(ForkCondition::Timestamp(*at)),
            Self::Difficulty(ttd) if fork == Fork::Paris => Some(paris_at(*ttd)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(name: &str, fork: Fork) -> Option<ForkCondition> {
        let network = test_network(name).unwrap_or_else(|| panic!("unknown network {name}"));
        network.forks.iter().find(|(found, _)| *found == fork).map(|(_, condition)| *condition)
    }

    #[test]
    fn names_of_the_suites_give_their_forks() {
        assert_eq!(at("Frontier", Fork::Homestead), None);
        assert_eq!(at("EIP150", Fork::Tangerine), Some(ForkCondition::Block(0)));
        assert_eq!(at("EIP150", Fork::SpuriousDragon), None);
        assert_eq!(at("London", Fork::ArrowGlacier), None);
        assert_eq!(at("BerlinToLondonAt5", Fork::London), Some(ForkCondition::Block(5)));
        assert_eq!(at("BerlinToLondonAt5", Fork::Berlin), Some(ForkCondition::Block(0)));
        assert_eq!(
            at("ByzantiumToConstantinopleFixAt5", Fork::Petersburg),
            Some(ForkCondition::Block(5))
        );
        assert_eq!(
            at("ArrowGlacierToParisAtDiffC0000", Fork::Paris).and_then(|paris| paris.ttd()),
            Some(U256::from(0xc0000))
        );
        assert_eq!(
            at("CancunToPragueAtTime15k", Fork::Prague),
            Some(ForkCondition::Timestamp(15_000))
        );
        assert_eq!(at("BPO1ToBPO2AtTime15k", Fork::Bpo1), Some(ForkCondition::ZERO_TIMESTAMP));
        assert_eq!(at("BPO2ToAmsterdamAtTime15k", Fork::Bpo3), None);
        assert_eq!(
            test_network("HomesteadToDaoAt5").unwrap().dao_fork,
            Some(DaoFork { block: 5, support: true })
        );
        assert_eq!(test_network("Atlantis"), None);
    }
}
