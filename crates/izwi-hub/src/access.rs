//! Access to sources: the hub's address and token, and the programs of package clients. Opens no connection.

use std::fmt;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Access to sources. Resolved once and never changed.
#[derive(Clone, PartialEq, Eq)]
pub struct Access {
    /// Address of the hub, without a closing `/`.
    pub endpoint: String,
    /// Bearer token for the hub; sent to the endpoint's host alone, and only over TLS or to this machine.
    pub token: Option<String>,
    /// Whether hub sources are disabled.
    pub offline: bool,
    /// Python commands to try, in order.
    pub python: Vec<String>,
    /// npm commands to try, in order.
    pub npm: Vec<String>,
}

impl Access {
    /// Reads `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` through `variable`; an empty value counts as unset.
    pub fn resolve(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| {
            variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
        };
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        let offline = set("HF_HUB_OFFLINE").map(|value| value.to_ascii_uppercase());
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: set("HF_TOKEN"),
            // The values that the hub's own client reads as true.
            // https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
            offline: offline.is_some_and(|value| matches!(value.as_str(), "1" | "ON" | "YES" | "TRUE")),
            python: ["python3", "python"].map(str::to_owned).to_vec(),
            npm: vec![if cfg!(windows) { "npm.cmd" } else { "npm" }.to_owned()],
        }
    }

    /// [`Access::resolve`] over the process's environment.
    pub fn from_env() -> Self {
        Self::resolve(|name| std::env::var(name).ok())
    }

    /// The token, if the connection to the endpoint is encrypted or stays on this machine.
    pub(crate) fn bearer(&self) -> Option<&str> {
        let token = self.token.as_deref()?;
        let local = |host: &str| matches!(host, "localhost" | "127.0.0.1" | "[::1]");
        let private = match self.endpoint.split_once("://") {
            Some(("https", _)) => true,
            Some(("http", rest)) => {
                let authority = rest.split('/').next().unwrap_or_default();
                local(authority.rsplit_once(':').map_or(authority, |(host, _)| host))
            }
            _ => false,
        };
        private.then_some(token)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("endpoint", &self.endpoint)
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("offline", &self.offline)
            .field("python", &self.python)
            .field("npm", &self.npm)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(variables: &[(&str, &str)]) -> Access {
        Access::resolve(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_default_is_the_public_hub() {
        let access = resolved(&[("HF_TOKEN", " "), ("HF_HUB_OFFLINE", "0")]);
        assert_eq!(access.endpoint, "https://huggingface.co");
        assert_eq!((access.token, access.offline), (None, false));
    }

    #[test]
    fn environment_variables_are_read() {
        let access = resolved(&[("HF_ENDPOINT", "https://mirror/"), ("HF_HUB_OFFLINE", "true")]);
        assert_eq!(access.endpoint, "https://mirror");
        assert!(access.offline);
    }

    #[test]
    fn the_token_is_sent_over_private_connections_only() {
        let sent = |endpoint| resolved(&[("HF_ENDPOINT", endpoint), ("HF_TOKEN", "t")]).bearer().is_some();
        assert!(sent("https://mirror/hub"));
        assert!(sent("http://127.0.0.1:80/hub"));
        assert!(sent("http://localhost"));
        assert!(!sent("http://mirror:80"));
        assert!(!sent("http://127.0.0.1.mirror"));
        let debug = format!("{:?}", resolved(&[("HF_TOKEN", "secret")]));
        assert!(!debug.contains("secret"), "{debug}");
    }
}
