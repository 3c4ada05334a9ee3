//! GraphQL over HTTP: methods, content types, names, origins, sizes, and how a query is bounded.

use crate::common::{HttpAnswer, NodeFixture, http, mpt, post, request, test_chain};
use retrie_pipeline::testkit::TestRules;
use retrie_rpc::server::{ConnectionLimits, GraphqlConfig, RunningServers, ServerConfig};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// Posts a query.
pub(super) async fn post_query(addr: SocketAddr, query: &str, variables: Value) -> HttpAnswer {
    let body = json!({ "query": query, "variables": variables }).to_string();
    http(addr, "POST", "/graphql", &[("content-type", "application/json")], &body).await
}

/// Serves GraphQL with this configuration.
pub(super) async fn serve(
    node: &NodeFixture,
    graphql: GraphqlConfig,
    limits: ConnectionLimits,
) -> (RunningServers, SocketAddr) {
    let mut config = ServerConfig { limits, ..node.config() };
    config.http.as_mut().unwrap().graphql = Some(graphql);
    let servers = node.serve(&config).await;
    let addr = servers.http_addr().unwrap();
    (servers, addr)
}

async fn served() -> (NodeFixture, RunningServers, SocketAddr) {
    let chain = test_chain(TestRules::Prague);
    let node = NodeFixture::new(&chain.spec, mpt());
    let (servers, addr) = serve(&node, GraphqlConfig::default(), ConnectionLimits::default()).await;
    (node, servers, addr)
}

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn queries_come_by_post_and_by_get() {
    let (_node, _servers, addr) = served().await;
    let expected = json!({ "data": { "block": { "number": "0x0" } } });
    let query = "{ block { number } }";
    let answer = post_query(addr, query, json!(null)).await;
    assert_eq!((answer.status, answer.json()), (200, expected.clone()));
    assert_eq!(answer.headers["content-type"], "application/json; charset=utf-8");
    let path = "/graphql?query=%7B+block+%7B+number+%7D+%7D";
    let answer = http(addr, "GET", path, &[], "").await;
    assert_eq!((answer.status, answer.json()), (200, expected.clone()));
    // With a variable, an operation of two, and the other path.
    let body = json!({
        "query": "query a { gasPrice } query b($n: Long!) { block(number: $n) { number } }",
        "operationName": "b",
        "variables": { "n": 0 },
    });
    let answer = http(addr, "POST", "/graphql/", &[JSON], &body.to_string()).await;
    assert_eq!((answer.status, answer.json()), (200, expected));
    // JSON-RPC is where it was.
    let chain_id = post(addr, &request("eth_chainId", json!([])).to_string()).await;
    assert!(chain_id.json()["result"].is_string());
}

#[tokio::test]
async fn what_is_no_query_is_refused() {
    let (_node, _servers, addr) = served().await;
    let mutation = "/graphql?query=mutation%7BsendRawTransaction(data:%220x%22)%7D";
    for (method, path, headers, body, status, words) in [
        ("PUT", "/graphql", &[JSON][..], "{}", 405, "POST or GET"),
        ("POST", "/graphql", &[], "{\"query\":\"{gasPrice}\"}", 415, "application/json"),
        ("POST", "/graphql", &[("content-type", "text/plain")], "{}", 415, "application/json"),
        ("POST", "/graphql", &[JSON], "[{\"query\":\"{gasPrice}\"}]", 400, "batches"),
        ("POST", "/graphql", &[JSON], "{", 400, "no query"),
        ("POST", "/graphql", &[JSON], "{}", 400, "InvalidSyntax"),
        ("POST", "/graphql", &[JSON], "{\"query\":\"{ block \"}", 400, "InvalidSyntax"),
        ("POST", "/graphql", &[JSON], "{\"query\":\"{ blocks }\"}", 400, "ValidationError"),
        ("POST", "/graphql", &[JSON], "{\"query\":\"{ nothing }\"}", 400, "ValidationError"),
        ("GET", "/graphql", &[], "", 400, "InvalidSyntax"),
        ("GET", "/graphql?variables=%7B", &[], "", 400, "no JSON"),
        ("GET", mutation, &[], "", 400, "must use POST"),
        ("GET", "/graphql/ui", &[], "", 405, "POST"),
    ] {
        let answer = http(addr, method, path, headers, body).await;
        assert_eq!(answer.status, status, "{method} {path} {body}: {answer:?}");
        assert!(answer.body.contains(words), "{method} {path} {body}: {answer:?}");
    }
}

#[tokio::test]
async fn names_and_origins_are_its_own() {
    let chain = test_chain(TestRules::Prague);
    let node = NodeFixture::new(&chain.spec, mpt());
    let graphql = GraphqlConfig {
        cors_origins: vec!["https://page.example".into()],
        vhosts: vec!["graph.example".into()],
    };
    let (_servers, addr) = serve(&node, graphql, ConnectionLimits::default()).await;
    let get = "/graphql?query=%7BgasPrice%7D";
    for (path, host, status) in [
        (get, "graph.example:8545", 200),
        (get, "localhost", 403),
        (get, "127.0.0.1", 200),
        ("/health", "localhost", 200),
        ("/health", "graph.example", 403),
    ] {
        let answer = http(addr, "GET", path, &[("host", host)], "").await;
        assert_eq!(answer.status, status, "{path} {host}");
    }
    let origin = ("origin", "https://page.example");
    let answer = http(addr, "GET", get, &[origin], "").await;
    assert_eq!(answer.headers["access-control-allow-origin"], "https://page.example");
    let answer = http(addr, "POST", "/", &[JSON, origin], "{}").await;
    assert!(answer.headers.get("access-control-allow-origin").is_none());
    let asked = [origin, ("access-control-request-method", "POST")];
    let answer = http(addr, "OPTIONS", "/graphql", &asked, "").await;
    assert_eq!(answer.headers["access-control-allow-origin"], "https://page.example");
}

#[tokio::test]
async fn there_is_none_unless_it_is_asked_for() {
    let chain = test_chain(TestRules::Prague);
    let node = NodeFixture::new(&chain.spec, mpt());
    let servers = node.serve(&node.config()).await;
    let addr = servers.http_addr().unwrap();
    let answer = post_query(addr, "{ gasPrice }", json!(null)).await;
    // It is a JSON-RPC request without a method.
    assert_eq!(answer.json()["error"]["code"], -32600);
}

#[tokio::test]
async fn a_query_is_bounded_before_and_while_it_is_executed() {
    let (_node, _servers, addr) = served().await;
    let deep = format!(
        "{}number{}",
        "{ block ".to_owned() + &"{ parent ".repeat(19) + "{ ",
        " }".repeat(21)
    );
    let mut bomb = String::from("{ ...F0 } fragment F20 on Query { gasPrice }");
    for n in 0..20 {
        bomb += &format!(" fragment F{n} on Query {{ ...F{0} ...F{0} }}", n + 1);
    }
    for (query, words) in [
        (format!("{{ block {{ {} }} }}", "number ".repeat(300)), "fields, more than 200"),
        (deep, "fields within each other"),
        (bomb, "fields, more than 200"),
        ("{ ...F } fragment F on Query { ...F }".into(), "spreads itself"),
        (format!("{{ block(number: {}", "[".repeat(10_000)), "brackets within each other"),
        ("{ __schema { types { fields { type { fields { name } } } } } }".into(), "lists of types"),
    ] {
        let answer = post_query(addr, &query, json!(null)).await;
        assert_eq!(answer.status, 400);
        let error = &answer.json()["errors"][0];
        assert_eq!(error["extensions"]["classification"], "ExecutionAborted", "{error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
    // What clients ask for at their start is answered.
    let answer = post_query(addr, INTROSPECTION, json!(null)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let types = answer.json()["data"]["__schema"]["types"].as_array().unwrap().len();
    assert!(types > 15, "{types}");
}

/// As clients ask for a schema.
const INTROSPECTION: &str = "query IntrospectionQuery { __schema { queryType { name } \
    mutationType { name } subscriptionType { name } types { ...FullType } directives { name \
    description locations args { ...InputValue } } } } \
    fragment FullType on __Type { kind name description fields(includeDeprecated: true) { name \
    description args { ...InputValue } type { ...TypeRef } isDeprecated deprecationReason } \
    inputFields { ...InputValue } interfaces { ...TypeRef } enumValues(includeDeprecated: true) { \
    name description isDeprecated deprecationReason } possibleTypes { ...TypeRef } } \
    fragment InputValue on __InputValue { name description type { ...TypeRef } defaultValue } \
    fragment TypeRef on __Type { kind name ofType { kind name ofType { kind name ofType { kind name \
    ofType { kind name ofType { kind name ofType { kind name ofType { kind name } } } } } } } }";

#[tokio::test]
async fn an_answer_has_the_size_of_other_answers_at_most() {
    let chain = test_chain(TestRules::Prague);
    let mut node = NodeFixture::new(&chain.spec, mpt());
    let limits = retrie_rpc::RequestLimits { max_response_size: 2000, ..node.rpc.limits };
    node.rpc = node.rpc.clone().with_limits(limits);
    let small = ConnectionLimits { max_request_size: 10_000, ..ConnectionLimits::default() };
    let (_servers, addr) = serve(&node, GraphqlConfig::default(), small).await;
    let bloom = |n: usize| format!("b{n}: block {{ logsBloom }} ");
    let query = |count| format!("{{ {} }}", (0..count).map(bloom).collect::<String>());
    assert_eq!(post_query(addr, &query(2), json!(null)).await.status, 200);
    let answer = post_query(addr, &query(5), json!(null)).await;
    assert_eq!(answer.status, 400);
    let shown = answer.json();
    assert!(shown["errors"][0]["message"].as_str().unwrap().contains("2000 bytes"), "{shown}");
    assert!(shown.get("data").is_none(), "{shown}");
    let long = format!("{{ gasPrice }} #{}", "x".repeat(10_000));
    assert_eq!(post_query(addr, &long, json!(null)).await.status, 413);
}
