//! Access checks: allowed names in the header `Host`, and origins of web pages.

use super::ServerError;
use http::{HeaderMap, HeaderValue, Method, Uri, header};
use std::net::IpAddr;
use tower_http::cors::{AllowOrigin, CorsLayer};

/// The allowed names in the header `Host`. They stop a page whose own name points to 127.0.0.1 (DNS
/// rebinding).
#[derive(Clone, Debug)]
pub(super) struct AllowedHosts(Option<Vec<String>>);

impl AllowedHosts {
    /// Allows these names; all names if `*` is among them.
    pub(super) fn new(names: &[String]) -> Self {
        let any = names.iter().any(|name| name.trim() == "*");
        Self((!any).then(|| names.iter().map(|name| name.trim().to_lowercase()).collect()))
    }

    pub(super) const fn any() -> Self {
        Self(None)
    }

    /// Also allows IP addresses, and requests without a name. A name in the URI, where HTTP/2 has it,
    /// counts before the header (RFC 9112, section 3.2.2).
    pub(super) fn allow(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let Some(names) = &self.0 else { return true };
        let host = match (uri.host(), headers.get(header::HOST)) {
            (Some(host), _) => host,
            (None, None) => return true,
            (None, Some(host)) => match host.to_str() {
                Ok(host) => host,
                Err(_) => return false,
            },
        };
        let name = without_port(host.trim()).to_lowercase();
        let address = name.trim_start_matches('[').trim_end_matches(']');
        name.is_empty() || address.parse::<IpAddr>().is_ok() || names.contains(&name)
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            // A colon within an IPv6 address does not start a port.
            if name.contains(':') && !name.ends_with(']') { host } else { name }
        }
        _ => host,
    }
}

/// The origins whose pages may open WebSockets.
#[derive(Clone, Debug)]
pub(super) struct AllowedOrigins(Option<Vec<String>>);

impl AllowedOrigins {
    /// Allows these origins; without any, pages of localhost; all origins if `*` is among them.
    pub(super) fn new(origins: &[String]) -> Self {
        let any = origins.iter().any(|origin| origin.trim() == "*");
        Self((!any).then(|| origins.iter().map(|origin| origin.trim().to_lowercase()).collect()))
    }

    pub(super) const fn any() -> Self {
        Self(None)
    }

    /// Also allows requests without an origin: only browsers send one.
    pub(super) fn allow(&self, headers: &HeaderMap) -> bool {
        let (Some(allowed), Some(origin)) = (&self.0, headers.get(header::ORIGIN)) else {
            return true;
        };
        let Ok(origin) = origin.to_str() else { return false };
        let origin = origin.trim().to_lowercase();
        let uri: Option<Uri> = origin.parse().ok();
        let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
        if allowed.is_empty() {
            return host == "localhost";
        }
        allowed.iter().any(|one| *one == origin || *one == host)
    }
}

/// The CORS layer that lets pages of these origins read responses; `None` without origins.
pub(super) fn cors(origins: &[String]) -> Result<Option<CorsLayer>, ServerError> {
    if origins.is_empty() {
        return Ok(None);
    }
    let origin = if origins.iter().any(|origin| origin.trim() == "*") {
        AllowOrigin::any()
    } else {
        let value = |origin: &String| {
            let value = HeaderValue::from_str(origin.trim());
            value.map_err(|_| ServerError::Origin(origin.clone()))
        };
        AllowOrigin::list(origins.iter().map(value).collect::<Result<Vec<_>, _>>()?)
    };
    let layer = CorsLayer::new()
        .allow_methods([Method::GET, Method::POST])
        .allow_origin(origin)
        .allow_headers(tower_http::cors::Any);
    Ok(Some(layer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: header::HeaderName, value: &str) -> HeaderMap {
        [(name, HeaderValue::from_str(value).unwrap())].into_iter().collect()
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn hosts_are_names_of_the_list_and_addresses() {
        let hosts = AllowedHosts::new(&names(&["localhost", "Node.example"]));
        let path = Uri::from_static("/");
        let in_uri = |host: &str| format!("http://{host}/").parse::<Uri>().unwrap();
        for good in ["localhost", "LOCALHOST:8545", "node.example:1", "127.0.0.1:8545", "[::1]:80"]
        {
            assert!(hosts.allow(&path, &headers(header::HOST, good)), "{good}");
            assert!(hosts.allow(&in_uri(good), &HeaderMap::new()), "{good}");
        }
        for bad in ["evil.example", "localhost.evil.example:8545", "xlocalhost"] {
            assert!(!hosts.allow(&path, &headers(header::HOST, bad)), "{bad}");
            assert!(!hosts.allow(&in_uri(bad), &headers(header::HOST, "localhost")), "{bad}");
        }
        assert!(hosts.allow(&path, &HeaderMap::new()));
        let any = AllowedHosts::new(&names(&["*"]));
        assert!(any.allow(&path, &headers(header::HOST, "evil.example")));
    }

    #[test]
    fn origins_are_those_of_the_list_or_of_this_machine() {
        let own = AllowedOrigins::new(&[]);
        assert!(own.allow(&HeaderMap::new()));
        assert!(own.allow(&headers(header::ORIGIN, "http://localhost:3000")));
        assert!(!own.allow(&headers(header::ORIGIN, "https://evil.example")));
        let listed = AllowedOrigins::new(&names(&["https://good.example", "other.example"]));
        assert!(listed.allow(&headers(header::ORIGIN, "https://good.example")));
        assert!(listed.allow(&headers(header::ORIGIN, "http://other.example:8080")));
        assert!(!listed.allow(&headers(header::ORIGIN, "http://good.example.evil.example")));
        assert!(!listed.allow(&headers(header::ORIGIN, "http://localhost")));
    }
}
