//! Whom to believe: the certificates of the host, and those that are named besides.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::error::{ImageError, Result, at};

/// Where hosts keep the certificates they believe.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Largest file of certificates.
const BUNDLE_MAX: u64 = 8 << 20;

/// How connections are secured.
pub(super) fn config(ca: Option<&Path>) -> Result<TlsConfig> {
    let mut certificates = Vec::new();
    if let Some(bundle) = BUNDLES.iter().map(Path::new).find(|path| path.exists()) {
        certificates.extend(read(bundle)?);
    }
    if let Some(ca) = ca {
        let own = read(ca)?;
        if own.is_empty() {
            return Err(ImageError::File {
                attempt: "take certificates from",
                path: ca.to_owned(),
                source: std::io::Error::other("it has no certificate in PEM"),
            });
        }
        certificates.extend(own);
    }
    let roots = RootCerts::Specific(Arc::new(certificates));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(TlsConfig::builder()
        .root_certs(roots)
        .unversioned_rustls_crypto_provider(provider)
        .build())
}

fn read(path: &Path) -> Result<Vec<Certificate<'static>>> {
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(BUNDLE_MAX).read_to_end(&mut text))
        .map_err(at("read", path))?;
    let items = parse_pem(&text).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        // What is no certificate gives nobody any trust.
        _ => None,
    });
    Ok(items.collect())
}
