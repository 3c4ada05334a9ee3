//! [`StateBackends`]: the backends of a store set, and whether they fit the chain.

use crate::{ChainSetupError, RootKind};
use retrie_chainspec::ChainSpec;
use retrie_db::StateRootMode;
use retrie_state::{AnyBackend, KeyForm, RowTable};
use retrie_state_store::{StateStore, TableNamespace};
use std::sync::Arc;

/// Names of the referee's tables start with this.
pub(crate) const REFEREE_PREFIX: &str = "Referee";
/// First table id of the referee; the ids of backends lie below.
const REFEREE_FIRST_ID: u8 = 0x80;

/// The backends of a store set.
pub(crate) struct StateBackends {
    pub(crate) own: Arc<dyn AnyBackend>,
    pub(crate) referee: Option<Arc<dyn AnyBackend>>,
    pub(crate) root_mode: StateRootMode,
    pub(crate) keys: KeyForm,
    /// The time from which on headers carry the binary tree's root.
    pub(crate) binary_tree_time: Option<u64>,
}

impl StateBackends {
    /// The time from which on the headers of `spec` carry the binary tree's root, in a datadir of
    /// this mode.
    pub(crate) fn binary_tree_time(spec: &ChainSpec, root_mode: StateRootMode) -> Option<u64> {
        spec.binary_tree_time().filter(|_| root_mode != StateRootMode::Native)
    }

    /// The backends that have to check header roots.
    fn checkers(&self) -> impl Iterator<Item = &Arc<dyn AnyBackend>> {
        let own = (self.root_mode == StateRootMode::Header).then_some(&self.own);
        own.into_iter().chain(&self.referee)
    }

    /// Refuses backends that have to check header roots and never can. A referee may have the binary
    /// tree's root before the chain says when it switches: its root is then kept, and checked later.
    pub(crate) fn check(&self) -> Result<(), ChainSetupError> {
        for backend in self.checkers() {
            let (profile, name) = (backend.profile(), backend.identity().name);
            let is_referee =
                self.referee.as_ref().is_some_and(|referee| Arc::ptr_eq(referee, backend));
            let is_binary = profile.binary_root && (is_referee || self.binary_tree_time.is_some());
            if is_binary && !self.keys.is_plain() {
                return Err(ChainSetupError::HashedBinaryTree { backend: name });
            }
            if !profile.ethereum_root && !is_binary {
                return Err(ChainSetupError::NoHeaderRoot { backend: name });
            }
        }
        Ok(())
    }

    /// Refuses backends that check only some of the header roots of a chain whose first block with
    /// a state has this timestamp.
    pub(crate) fn check_eras(&self, chain: &str, first: u64) -> Result<(), ChainSetupError> {
        let Some(time) = self.binary_tree_time else { return Ok(()) };
        let eras = [(first < time, first), (true, time.max(first))];
        for (_, at) in eras.into_iter().filter(|(is_met, _)| *is_met) {
            let kind = RootKind::at(Some(time), at);
            let fits = |one: &Arc<dyn AnyBackend>| kind.is_of(&one.profile());
            if self.checkers().next().is_some() && !self.checkers().any(fits) {
                return Err(ChainSetupError::UncheckedRoots {
                    chain: chain.to_owned(),
                    time,
                    kind,
                    own: self.own.identity().name,
                    is_shadow: self.root_mode == StateRootMode::Shadow,
                    referee: self.referee.as_ref().map(|referee| referee.identity().name),
                });
            }
        }
        Ok(())
    }

    /// The tables that the backends need.
    pub(crate) fn tables(&self) -> Vec<RowTable> {
        let mut tables = StateStore::tables(&*self.own);
        tables.extend(self.referee.iter().flat_map(|referee| referee_names(&**referee).tables()));
        tables
    }
}

/// The table namespace of a referee.
pub(crate) fn referee_names(referee: &dyn AnyBackend) -> TableNamespace {
    TableNamespace::new(REFEREE_PREFIX, REFEREE_FIRST_ID, &StateStore::tables(referee))
}
