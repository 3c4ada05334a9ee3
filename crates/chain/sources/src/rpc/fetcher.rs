//! [`BlockFetcher`] over a node's JSON-RPC.

use super::{RpcClient, RpcError};
use crate::fetch::{BlockFetcher, BlockTag, FetchError};
use alloy_primitives::B256;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, Header},
};
use std::time::Duration;

impl From<RpcError> for FetchError {
    fn from(error: RpcError) -> Self {
        Self::new(error)
    }
}

impl BlockFetcher for RpcClient {
    fn name(&self) -> &str {
        self.endpoint()
    }

    fn check_chain(&self, spec: &ChainSpec, patience: Option<Duration>) -> Result<(), FetchError> {
        let checked = match patience {
            Some(patience) => self.single_try(patience).check_chain(spec),
            None => Self::check_chain(self, spec),
        };
        Ok(checked?)
    }

    fn tagged(&self, tag: BlockTag) -> Result<(B256, Header), FetchError> {
        let tag = match tag {
            BlockTag::Head => "latest",
            BlockTag::Safe => "safe",
            BlockTag::Finalized => "finalized",
        };
        Ok(Self::tagged(self, tag)?)
    }

    fn header_by_hash(&self, hash: B256) -> Result<Header, FetchError> {
        Ok(Self::header_by_hash(self, hash)?)
    }

    fn block_by_hash(&self, hash: B256) -> Result<Block, FetchError> {
        Ok(Self::block_by_hash(self, hash)?)
    }

    fn block_by_number(&self, number: u64) -> Result<Block, FetchError> {
        Ok(self.block(number)?)
    }
}
