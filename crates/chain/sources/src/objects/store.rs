//! One bucket or web server: its store of `object_store`, its credentials, and retried requests.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use futures::future::BoxFuture;
use object_store::{
    ObjectStore, RetryConfig,
    aws::{AmazonS3Builder, AwsCredentialProvider},
    gcp::{GcpCredentialProvider, GoogleCloudStorageBuilder},
    http::HttpBuilder,
};

use super::{
    address::{ObjectUrl, StoreScheme},
    connector::{StoreConnector, StoreRefusal, block_on},
    environment::StoreEnvironment,
    error::{ObjectError, ObjectFault, classify, find, innermost},
    manifest::ChecksumManifest,
};
use crate::http::{BlockingClient, HttpFault};

/// Variables with credentials for S3.
const AWS_VARIABLES: &str = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN, if \
                             they came with one), or AWS_PROFILE, or AWS_SKIP_SIGNATURE=true for a \
                             public bucket";
/// Variables with credentials for GCS.
const GCS_VARIABLES: &str = "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT (the path of a \
                             JSON key), or GOOGLE_SKIP_SIGNATURE=true for a public bucket";

/// Lists of checksums by folder; `None` if a folder has no list.
type ManifestCache = BTreeMap<String, Option<Arc<ChecksumManifest>>>;

/// A bucket or web server.
pub(super) struct RemoteStore {
    pub(super) inner: Arc<dyn ObjectStore>,
    pub(super) scheme: StoreScheme,
    /// Prefix of its objects' names in messages.
    pub(super) root: String,
    pub(super) http: BlockingClient,
    login: StoreCredentials,
    /// Set once credentials were obtained.
    is_known: OnceLock<()>,
    manifests: Mutex<ManifestCache>,
}

impl fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("root", &self.root).finish_non_exhaustive()
    }
}

/// The source of credentials.
enum StoreCredentials {
    Anonymous,
    Aws(AwsCredentialProvider),
    Gcs(GcpCredentialProvider),
}

impl RemoteStore {
    pub(super) fn open(
        address: &ObjectUrl,
        environment: &StoreEnvironment,
        http: &BlockingClient,
    ) -> Result<Self, ObjectError> {
        let (inner, login) = match address.scheme {
            StoreScheme::S3 => s3(&address.store, environment, http)?,
            StoreScheme::Gs => gcs(&address.store, environment, http)?,
            StoreScheme::Http => {
                let builder = HttpBuilder::new()
                    .with_url(&address.store)
                    .with_retry(no_retries())
                    .with_http_connector(StoreConnector::new(http, true));
                let store = builder.build().map_err(settings)?;
                (Arc::new(store) as Arc<dyn ObjectStore>, StoreCredentials::Anonymous)
            }
        };
        Ok(Self {
            inner,
            scheme: address.scheme,
            root: address.root.clone(),
            http: http.clone(),
            login,
            is_known: OnceLock::new(),
            manifests: Mutex::default(),
        })
    }

    /// Makes a repeatable request, with the client's retries.
    pub(super) fn request<'a, T>(
        &'a self,
        action: &'static str,
        request: impl Fn(&'a dyn ObjectStore) -> BoxFuture<'a, object_store::Result<T>>,
    ) -> Result<T, ObjectError> {
        let mut backoff = self.http.backoff();
        loop {
            let fault = match self.request_once(|store| request(store))? {
                Ok(value) => return Ok(value),
                Err(error) => match classify(&error, 0) {
                    ObjectFault::Exchange(fault) => fault,
                    ObjectFault::Truncated { expected, got } => {
                        return Err(ObjectError::Truncated { expected, got });
                    }
                    ObjectFault::Final(error) => return Err(error),
                },
            };
            backoff.wait(fault).map_err(|fault| ObjectError::Request { action, fault })?;
        }
    }

    /// Makes a request once.
    pub(super) fn request_once<'a, T>(
        &'a self,
        request: impl FnOnce(&'a dyn ObjectStore) -> BoxFuture<'a, object_store::Result<T>>,
    ) -> Result<object_store::Result<T>, ObjectError> {
        self.log_in()?;
        block_on(request(&*self.inner))
    }

    /// Obtains credentials first, so that missing credentials are not mistaken for a failed
    /// request.
    fn log_in(&self) -> Result<(), ObjectError> {
        if self.is_known.get().is_some() {
            return Ok(());
        }
        let (known, variables) = match &self.login {
            StoreCredentials::Anonymous => return Ok(()),
            StoreCredentials::Aws(login) => {
                (block_on(login.get_credential())?.map(drop), AWS_VARIABLES)
            }
            StoreCredentials::Gcs(login) => {
                (block_on(login.get_credential())?.map(drop), GCS_VARIABLES)
            }
        };
        known.map_err(|error| {
            let why = match (find::<HttpFault>(&error), find::<StoreRefusal>(&error)) {
                (Some(HttpFault::Stopped), _) => {
                    let action = "ask for credentials";
                    return ObjectError::Request { action, fault: HttpFault::Stopped };
                }
                (Some(fault), _) => format!("asked this machine's own service: {fault}"),
                (_, Some(refusal)) => format!("asked the service for them: {refusal}"),
                _ => innermost(&error),
            };
            ObjectError::NoCredentials { why, variables }
        })?;
        let _ = self.is_known.set(());
        Ok(())
    }

    /// The list of checksums of a folder, if it has one. `read` is called the first time.
    pub(super) fn manifest(
        &self,
        folder: &str,
        read: impl FnOnce() -> Result<Option<ChecksumManifest>, ObjectError>,
    ) -> Result<Option<Arc<ChecksumManifest>>, ObjectError> {
        let lock = || self.manifests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(folder) {
            return Ok(known.clone());
        }
        let found = read()?.map(Arc::new);
        Ok(lock().entry(folder.to_owned()).or_insert(found).clone())
    }

    /// Drops the cached list of a folder, which has been rewritten.
    pub(super) fn forget_manifest(&self, folder: &str) {
        self.manifests.lock().unwrap_or_else(PoisonError::into_inner).remove(folder);
    }
}

/// `object_store` must not retry: only the reader knows how far an object was read.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn settings(error: object_store::Error) -> ObjectError {
    ObjectError::Settings(innermost(&error))
}

fn s3(
    bucket: &str,
    environment: &StoreEnvironment,
    http: &BlockingClient,
) -> Result<(Arc<dyn ObjectStore>, StoreCredentials), ObjectError> {
    let mut builder = AmazonS3Builder::new();
    for (name, value) in environment.settings("AWS_") {
        // Variables of other AWS tools are ignored.
        if let Ok(key) = name.parse() {
            builder = builder.with_config(key, value);
        }
    }
    let profile = environment.profile();
    let no_credentials = |why| ObjectError::NoCredentials { why, variables: AWS_VARIABLES };
    let names = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
    let anonymous = environment.is_true("AWS_SKIP_SIGNATURE");
    let service = [
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ];
    let has = |name: &&str| environment.get(name).is_some();
    if anonymous || names.iter().all(has) {
        // The variables are complete.
    } else if let Some(missing) = names.iter().find(|name| !has(name))
        && names.iter().any(has)
    {
        return Err(no_credentials(format!("{missing} is not set")));
    } else if profile.has_keys() {
        for key in ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"] {
            if let (Some(value), Ok(key)) = (profile.get(key), key.parse()) {
                builder = builder.with_config(key, value);
            }
        }
    } else if let Some(name) = &profile.asked {
        return Err(no_credentials(format!(
            "profile {name} of ~/.aws has no aws_access_key_id and aws_secret_access_key; roles and \
             SSO are not read, `aws configure export-credentials --format env` gives their keys"
        )));
    } else if environment.is_true("AWS_EC2_METADATA_DISABLED") && !service.iter().any(has) {
        return Err(no_credentials("AWS_EC2_METADATA_DISABLED is set".to_owned()));
    }
    if !["AWS_REGION", "AWS_DEFAULT_REGION"].iter().any(has)
        && let Some(region) = profile.get("region")
    {
        builder = builder.with_region(region);
    }
    if !["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"].iter().any(has)
        && let Some(endpoint) = profile.get("endpoint_url")
    {
        builder = builder.with_endpoint(endpoint);
    }
    let builder = builder
        .with_bucket_name(bucket)
        .with_retry(no_retries())
        .with_http_connector(StoreConnector::new(http, false));
    let store = builder.build().map_err(settings)?;
    let login = match anonymous {
        true => StoreCredentials::Anonymous,
        false => StoreCredentials::Aws(store.credentials().clone()),
    };
    Ok((Arc::new(store), login))
}

fn gcs(
    bucket: &str,
    environment: &StoreEnvironment,
    http: &BlockingClient,
) -> Result<(Arc<dyn ObjectStore>, StoreCredentials), ObjectError> {
    let mut builder = GoogleCloudStorageBuilder::new();
    for (name, value) in environment.settings("GOOGLE_") {
        if let Ok(key) = name.parse() {
            builder = builder.with_config(key, value);
        }
    }
    let mut anonymous = environment.is_true("GOOGLE_SKIP_SIGNATURE");
    if let Some(host) = environment.get("STORAGE_EMULATOR_HOST") {
        let url = if host.contains("://") { host.to_owned() } else { format!("http://{host}") };
        builder = builder.with_base_url(url.trim_end_matches('/')).with_skip_signature(true);
        anonymous = true;
    }
    let builder = builder
        .with_bucket_name(bucket)
        .with_retry(no_retries())
        .with_http_connector(StoreConnector::new(http, false));
    let store = builder.build().map_err(settings)?;
    let login = match anonymous {
        true => StoreCredentials::Anonymous,
        false => StoreCredentials::Gcs(store.credentials().clone()),
    };
    Ok((Arc::new(store), login))
}
