//! [`BackendWrapper`]: a backend that changes some methods of another one.

use alloy_primitives::{B256, Bytes};
use retrie_state::{
    AccountKey, AnyBackend, AnyCache, ApplyContext, ApplyOutput, BackendDelta, BackendExtensions,
    BackendIdentity, BackendKey, BackendProfile, BackendStats, BulkSink, NodeRead, NodeWrite,
    ProofError, StateError, StateValue,
};
use std::path::Path;

/// Declares [`BackendWrapper`] with the given methods of [`AnyBackend`], each of which calls the
/// wrapped backend by default, and implements [`AnyBackend`] by them.
macro_rules! wrapped_methods {
    ($(fn $name:ident($($arg:ident: $of:ty),*) -> $output:ty;)*) => {
        /// A backend that changes some methods of the [`inner`](Self::inner) one, for tests. An
        /// implementation writes only the methods that it changes; [`WrappedBackend`] makes a backend of
        /// it. The caches are those of the inner backend.
        #[expect(missing_docs, reason = "each method is the one of `Backend` that has its name")]
        pub trait BackendWrapper: Send + Sync + 'static {
            /// The wrapped backend.
            fn inner(&self) -> &dyn AnyBackend;

            $(fn $name(&self, $($arg: $of),*) -> $output {
                self.inner().$name($($arg),*)
            })*
        }

        impl<W: BackendWrapper> AnyBackend for WrappedBackend<W> {
            $(fn $name(&self, $($arg: $of),*) -> $output {
                self.0.$name($($arg),*)
            })*
        }
    };
}

/// The backend that a [`BackendWrapper`] is.
#[derive(Debug)]
pub struct WrappedBackend<W>(pub W);

type LoadedEntries<'a> = &'a mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>;

wrapped_methods! {
    fn identity() -> &BackendIdentity;
    fn profile() -> BackendProfile;
    fn open(view: &dyn NodeRead, dir: Option<&Path>) -> Result<AnyCache, StateError>;
    fn apply(
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        cache: &AnyCache,
        delta: &BackendDelta
    ) -> Result<ApplyOutput<AnyCache>, StateError>;
    fn read(
        view: &dyn NodeRead,
        cache: &AnyCache,
        key: &BackendKey
    ) -> Result<Option<StateValue>, StateError>;
    fn slots_of(
        view: &dyn NodeRead,
        cache: &AnyCache,
        account: &AccountKey,
        limit: usize
    ) -> Result<Vec<(B256, StateValue)>, StateError>;
    fn entries(
        view: &dyn NodeRead,
        cache: &AnyCache,
        start: Option<&BackendKey>,
        limit: usize
    ) -> Result<Vec<(BackendKey, StateValue)>, StateError>;
    fn bulk_load(
        number: u64,
        entries: LoadedEntries<'_>,
        sink: &mut dyn BulkSink
    ) -> Result<B256, StateError>;
    fn prove(
        view: &dyn NodeRead,
        cache: &AnyCache,
        keys: &[BackendKey]
    ) -> Result<Bytes, StateError>;
    fn verify(
        root: B256,
        keys: &[BackendKey],
        proof: &[u8]
    ) -> Result<Vec<Option<StateValue>>, ProofError>;
    fn stats(view: &dyn NodeRead, cache: &AnyCache) -> Result<BackendStats, StateError>;
    fn check(
        view: &dyn NodeRead,
        cache: &AnyCache,
        root: B256,
        is_tip: bool,
        rebuilt: Option<&dyn NodeRead>,
        report: &mut dyn FnMut(StateError)
    ) -> Result<(), StateError>;
    fn extensions() -> BackendExtensions<'_>;
}
