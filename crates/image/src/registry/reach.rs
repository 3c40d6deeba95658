//! Which addresses a registry may send us to: none that is nearer to us than its own.

use std::net::{IpAddr, Ipv4Addr};

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// How near to us an address is, from everybody's to our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Near {
    Public,
    /// Of a network of somebody's own.
    Private,
    /// Of the wire, where hosts of clouds tell secrets.
    Link,
    /// This machine.
    Loopback,
}

fn near(address: IpAddr) -> Near {
    let address = match address {
        IpAddr::V4(address) => address,
        IpAddr::V6(address) => {
            if let Some(inner) = address.to_ipv4_mapped() {
                return near(IpAddr::V4(inner));
            }
            let [first, second, .., high, low] = address.segments();
            return match () {
                () if address.is_loopback() || address.is_unspecified() => Near::Loopback,
                () if address.is_unicast_link_local() || address.is_multicast() => Near::Link,
                () if address.is_unique_local() => Near::Private,
                // An address of the old kind within one of the new kind.
                () if first == 0x64 && second == 0xff9b => near(IpAddr::V4(Ipv4Addr::from(
                    (u32::from(high) << 16) | u32::from(low),
                ))),
                () => Near::Public,
            };
        }
    };
    let [first, second, ..] = address.octets();
    match () {
        () if address.is_loopback() || first == 0 => Near::Loopback,
        () if address.is_link_local() || address.is_multicast() || address.is_broadcast() => {
            Near::Link
        }
        () if address.is_private() || (first == 100 && (64..128).contains(&second)) => {
            Near::Private
        }
        () => Near::Public,
    }
}

/// Looks names up, and refuses addresses that are nearer than those of the registry.
#[derive(Debug)]
pub(super) struct Reach {
    registry: Uri,
    names: DefaultResolver,
}

impl Reach {
    /// For a registry that is spoken to at this address.
    pub(super) fn new(registry: Uri) -> Self {
        Self {
            registry,
            names: DefaultResolver::default(),
        }
    }
}

impl Resolver for Reach {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.names.resolve(uri, config, timeout)?;
        if uri.scheme() == self.registry.scheme() && uri.authority() == self.registry.authority() {
            return Ok(found);
        }
        let own = self.names.resolve(&self.registry, config, timeout)?;
        // One that has addresses of both kinds counts as the farther one.
        let most = own.iter().map(|one| near(one.ip())).min();
        let most = most.unwrap_or(Near::Public);
        match found.iter().find(|one| near(one.ip()) > most) {
            None => Ok(found),
            Some(refused) => Err(ureq::Error::Other(
                format!(
                    "it sends us on to {}, an address that is not everybody's",
                    refused.ip()
                )
                .into(),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goes(from: &str, to: &str) -> bool {
        let agent = ureq::Agent::config_builder().build();
        let timeout = NextTimeout {
            after: ureq::unversioned::transport::time::Duration::NotHappening,
            reason: ureq::Timeout::Resolve,
            per_read: None,
            per_write: None,
        };
        let reach = Reach::new(from.parse().unwrap());
        reach.resolve(&to.parse().unwrap(), &agent, timeout).is_ok()
    }

    #[test]
    fn a_registry_leads_to_nothing_that_is_nearer_than_itself() {
        let near = [
            "127.0.0.1",
            "0.0.0.0",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.1]",
            "[64:ff9b::7f00:1]",
            "169.254.169.254",
            "[fe80::1]",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "[fd00::1]",
        ];
        for to in near {
            let to = format!("https://{to}:5/");
            assert!(!goes("https://192.0.2.1/", &to), "{to}");
            assert!(goes("https://127.0.0.1:9/", &to), "{to}");
            assert!(goes(&to, &to), "{to}");
        }
        assert!(goes("https://192.0.2.1/", "https://[2001:db8::1]/"));
        assert!(goes("https://10.0.0.1/", "https://10.0.0.2/"));
        assert!(!goes("https://10.0.0.1/", "https://127.0.0.1/"));
        assert!(!goes("https://10.0.0.1/", "https://169.254.169.254/"));
    }
}
