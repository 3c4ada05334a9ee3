//! URLs of objects: scheme, bucket or server, key.

use object_store::path::Path as Key;
use ureq::http::Uri;

use super::error::ObjectError;

/// The kind of store in a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreScheme {
    S3,
    Gs,
    /// Any web server.
    Http,
}

/// A parsed URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectUrl {
    pub(super) scheme: StoreScheme,
    /// The bucket; for a web server its root with the query, which may be a signature.
    pub(super) store: String,
    /// Prefix of its objects' names in messages: `s3://bucket/`.
    pub(super) root: String,
    pub(super) key: Key,
    /// Whether the form of the URL shows that it is a folder.
    pub(super) is_folder: bool,
}

impl ObjectUrl {
    /// Parses a URL; `None` if the text is a path.
    pub(super) fn parse(text: &str) -> Option<Result<Self, ObjectError>> {
        let (scheme, rest) = text.split_once("://")?;
        Some(match scheme {
            "s3" => Self::of_bucket(StoreScheme::S3, text, rest),
            "gs" => Self::of_bucket(StoreScheme::Gs, text, rest),
            "http" | "https" => Self::of_server(text),
            _ => return None,
        })
    }

    /// Keys are not percent-encoded in URLs of stores, as in the stores' own tools.
    fn of_bucket(scheme: StoreScheme, text: &str, rest: &str) -> Result<Self, ObjectError> {
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(ObjectError::Address("it names no bucket".to_owned()));
        }
        let root = format!("{}{bucket}/", &text[..text.len() - rest.len()]);
        let is_folder = key.is_empty() || key.ends_with('/');
        let key = Key::parse(key).map_err(|error| ObjectError::Address(error.to_string()))?;
        Ok(Self { scheme, store: bucket.to_owned(), root, key, is_folder })
    }

    fn of_server(text: &str) -> Result<Self, ObjectError> {
        let wrong = |error: &dyn ToString| ObjectError::Address(error.to_string());
        let uri: Uri = text.parse().map_err(|error| wrong(&error))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(ObjectError::Address("it names no server".to_owned()));
        };
        let key = Key::from_url_path(uri.path()).map_err(|error| wrong(&error))?;
        let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let host = authority.as_str();
        // A password must not be shown.
        let shown = host.rsplit_once('@').map_or(host, |(_, host)| host);
        Ok(Self {
            scheme: StoreScheme::Http,
            store: format!("{scheme}://{host}/{query}"),
            root: format!("{scheme}://{shown}/"),
            key,
            is_folder: uri.path().ends_with('/'),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(url: &str) -> (String, String, String, bool) {
        let ObjectUrl { store, root, key, is_folder, .. } = ObjectUrl::parse(url).unwrap().unwrap();
        (store, root, key.to_string(), is_folder)
    }

    #[test]
    fn urls_are_taken_apart_as_other_tools_do_and_paths_are_none() {
        let of = |store: &str, root: &str, key: &str, is_folder| {
            (store.to_owned(), root.to_owned(), key.to_owned(), is_folder)
        };
        assert_eq!(parts("s3://b/k/1.json.gz"), of("b", "s3://b/", "k/1.json.gz", false));
        assert_eq!(parts("gs://b/k/"), of("b", "gs://b/", "k", true));
        assert_eq!(parts("s3://b"), of("b", "s3://b/", "", true));
        assert_eq!(parts("s3://b/a%20b"), of("b", "s3://b/", "a%20b", false));
        assert_eq!(
            parts("https://me:secret@h:8/a%20b/x.rlp?sig=1"),
            of("https://me:secret@h:8/?sig=1", "https://h:8/", "a b/x.rlp", false)
        );
        for path in ["/data/s3", "data", "C:/x", "ftp://x/y", "s3:/b"] {
            assert!(ObjectUrl::parse(path).is_none(), "{path}");
        }
        for bad in ["s3://", "s3:///key", "http://", "s3://b/a//b", "https:///x"] {
            assert!(ObjectUrl::parse(bad).unwrap().is_err(), "{bad}");
        }
    }
}
