//! [`GraphqlService`]: executes queries.

use super::{
    answer::GraphqlAnswer,
    budget::{BudgetExtension, QueryBudget},
    document::CheckedDocument,
    query::{MutationObject, QueryObject},
    scope::QueryScope,
};
use crate::{RpcContext, RpcError, RpcResult};
use async_graphql::{EmptySubscription, Request, Response, Schema, Variables};
use retrie_engine::LiveView;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::fmt;
use tokio::runtime::Handle;

/// Number of views on which a query is tried while reorgs follow each other.
const VIEW_ATTEMPTS: usize = 8;

/// Most values of all variables: each takes some hundred bytes of memory, also one that has two in
/// the text.
const MAX_VALUES: usize = 10_000;

/// A query as it arrives: its text, and the values of its variables.
#[derive(Debug, Default)]
pub(crate) struct GraphqlCall {
    query: String,
    operation_name: Option<String>,
    variables: Variables,
    /// Whether it came by GET, which must not change anything.
    is_read_only: bool,
}

/// The body of a POST.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CallBody<'a> {
    #[serde(default)]
    query: String,
    operation_name: Option<String>,
    #[serde(borrow)]
    variables: Option<&'a RawValue>,
}

impl GraphqlCall {
    /// Parses the body of a POST.
    ///
    /// # Errors
    /// The reason why it is no query.
    pub(crate) fn of_body(body: &[u8]) -> Result<Self, String> {
        // serde would also take a list of the fields.
        if body.trim_ascii_start().first() != Some(&b'{') {
            return Err("the body must be one object with a query; batches are not served".into());
        }
        let CallBody { query, operation_name, variables } = serde_json::from_slice(body)
            .map_err(|error| format!("the body is no query: {error}"))?;
        let variables = match variables {
            Some(variables) => parse_variables(variables.get())?,
            None => Variables::default(),
        };
        Ok(Self { query, operation_name, variables, is_read_only: false })
    }

    /// Parses the query string of a GET.
    ///
    /// # Errors
    /// As [`of_body`](Self::of_body).
    pub(crate) fn of_query_string(text: &str) -> Result<Self, String> {
        let mut call = Self { is_read_only: true, ..Self::default() };
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            match &*name {
                "query" => call.query = value.into_owned(),
                "operationName" => call.operation_name = Some(value.into_owned()),
                "variables" if value.is_empty() => {}
                "variables" => call.variables = parse_variables(&value)?,
                _ => {}
            }
        }
        Ok(call)
    }
}

fn parse_variables(text: &str) -> Result<Variables, String> {
    // Each value but the first of its list or object follows a comma.
    let count = text.bytes().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
    if count > MAX_VALUES {
        return Err(format!(
            "the variables have more than {MAX_VALUES} values: ask for less at once"
        ));
    }
    serde_json::from_str(text).map_err(|error| format!("the variables are no JSON: {error}"))
}

/// Executes queries on the chain of a node. Cheap to clone.
#[derive(Clone)]
pub(crate) struct GraphqlService {
    schema: Schema<QueryObject, MutationObject, EmptySubscription>,
    rpc: RpcContext,
}

impl fmt::Debug for GraphqlService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphqlService").finish_non_exhaustive()
    }
}

impl GraphqlService {
    pub(crate) fn new(rpc: &RpcContext) -> Self {
        let schema = Schema::build(QueryObject, MutationObject, EmptySubscription)
            .extension(BudgetExtension)
            .finish();
        Self { schema, rpc: rpc.clone() }
    }

    /// Answers a query with a heavy permit, on a thread that may block.
    pub(crate) async fn answer(&self, call: GraphqlCall) -> GraphqlAnswer {
        let service = self.clone();
        match self.rpc.run_heavy(move |view| service.execute(view, &call)).await {
            Ok(answer) => answer,
            Err(error) => GraphqlAnswer::aborted(&error.to_string()),
        }
    }

    /// Executes a query on a view. The state of the view's head may leave the store; then the query
    /// is executed again, unless it changes something.
    fn execute(&self, mut view: LiveView, call: &GraphqlCall) -> RpcResult<GraphqlAnswer> {
        let document = match CheckedDocument::parse(&call.query) {
            Ok(document) => document,
            Err(error) => return Ok(GraphqlAnswer::refused(error)),
        };
        if document.has_mutation && call.is_read_only {
            return Ok(GraphqlAnswer::aborted("mutations must use POST"));
        }
        let mut budget = QueryBudget::new(self.rpc.limits.max_response_size);
        let mut attempt = 1;
        loop {
            let (rpc, view_of_query) = (self.rpc.clone(), view.clone());
            let scope = QueryScope { rpc, view: view_of_query, budget: budget.clone() };
            let response = self.resolve(&document, call, scope);
            if let Some(reason) = budget.exceeded() {
                return Ok(GraphqlAnswer::aborted(reason));
            }
            if document.has_mutation || attempt == VIEW_ATTEMPTS || !lacks_state(&response) {
                return Ok(GraphqlAnswer::of(response));
            }
            let Some(next) = view.successor()? else {
                return Ok(GraphqlAnswer::of(response));
            };
            view = next;
            budget = budget.renewed();
            attempt += 1;
        }
    }

    fn resolve(
        &self,
        document: &CheckedDocument,
        call: &GraphqlCall,
        scope: QueryScope,
    ) -> Response {
        let mut request = Request::new("").variables(call.variables.clone()).data(scope);
        request.operation_name = call.operation_name.clone();
        request.set_parsed_query(document.document.clone());
        Handle::current().block_on(self.schema.execute(request))
    }
}

/// Whether a field failed because the state of its block is not kept.
fn lacks_state(response: &Response) -> bool {
    let mut errors = response.errors.iter();
    errors.any(|error| error.source::<RpcError>().is_some_and(RpcError::lacks_state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_one_object() {
        let call =
            GraphqlCall::of_body(b" {\"query\":\"{ gasPrice }\",\"variables\":null}").unwrap();
        assert_eq!((&*call.query, call.is_read_only), ("{ gasPrice }", false));
        for bad in ["", "[]", "[\"{ gasPrice }\"]", "{", "{\"query\":5}", "{\"variables\":[]}"] {
            GraphqlCall::of_body(bad.as_bytes()).expect_err(bad);
        }
        for (count, is_accepted) in [(9000, true), (11_000, false)] {
            let body = format!("{{\"variables\":{{\"a\":[1{}]}}}}", ",1".repeat(count));
            assert_eq!(GraphqlCall::of_body(body.as_bytes()).is_ok(), is_accepted);
        }
    }

    #[test]
    fn a_query_string_names_its_parts() {
        let text = "query=%7B+block(number%3A$n)%7Bhash%7D%7D&variables=%7B%22n%22%3A1%7D&x=1";
        let call = GraphqlCall::of_query_string(text).unwrap();
        assert_eq!(call.query, "{ block(number:$n){hash}}");
        assert!(call.is_read_only && call.variables.contains_key("n"));
        assert!(GraphqlCall::of_query_string("variables=%7B").is_err());
        assert_eq!(GraphqlCall::of_query_string("").unwrap().query, "");
    }

    /// The names that clients of geth and Besu use.
    #[test]
    fn the_schema_has_the_types_of_other_clients() {
        let sdl = Schema::build(QueryObject, MutationObject, EmptySubscription).finish().sdl();
        for part in [
            "scalar Address\n",
            "scalar BigInt\n",
            "scalar Bytes\n",
            "scalar Bytes32\n",
            "scalar Long\n",
            "type Account {",
            "storage(slot: Bytes32!): Bytes32!",
            "type Block {",
            "account(address: Address!): Account!",
            "call(data: CallData!): CallResult\n",
            "logs(filter: BlockFilterCriteria!): [Log!]!",
            "ommers: [Block]\n",
            "transactions: [Transaction!]\n",
            "withdrawals: [Withdrawal!]\n",
            "topics: [[Bytes32!]!]\n",
            "block(number: Long, hash: Bytes32): Block\n",
            "blocks(from: Long, to: Long): [Block!]!",
            "logs(filter: FilterCriteria!): [Log!]!",
            "chainID: BigInt!",
            "syncing: SyncState\n",
            "sendRawTransaction(data: Bytes!): Bytes32!",
            "yParity: BigInt\n",
            "type: Long\n",
            "accessList: [AccessTuple!]\n",
            "mutation: Mutation",
        ] {
            assert!(sdl.contains(part), "{part:?} is missing in\n{sdl}");
        }
    }
}
