//! Forgiving paths: what clients make of a base address with `/v1`, with a slash at its end, or with both.

use axum::Router;
use axum::extract::Request;
use axum::http::Uri;
use axum::http::uri::PathAndQuery;
use axum::middleware::map_request;

/// The routes, which get each request with the path that its client means. A layer of the routes themselves would see it
/// after its route was found.
pub(super) fn forgiving(routes: Router) -> Router {
    Router::new().fallback_service(routes).layer(map_request(with_meant_path))
}

async fn with_meant_path(mut request: Request) -> Request {
    if let Some(uri) = meant(request.uri()) {
        *request.uri_mut() = uri;
    }
    request
}

/// The address that is meant; `None` if it is the one that was sent.
fn meant(uri: &Uri) -> Option<Uri> {
    let sent = uri.path();
    let is_plain =
        !sent.contains("//") && !sent.starts_with("/v1/v1/") && (sent == "/" || !sent.ends_with('/'));
    if is_plain || !sent.starts_with('/') {
        return None;
    }
    let mut parts = sent.split('/').filter(|part| !part.is_empty()).peekable();
    let mut path = String::with_capacity(sent.len());
    while let Some(part) = parts.next() {
        if path.is_empty() && part == "v1" && parts.peek() == Some(&"v1") {
            continue;
        }
        path.push('/');
        path.push_str(part);
    }
    if path.is_empty() {
        path.push('/');
    }
    if let Some(query) = uri.query() {
        path.push('?');
        path.push_str(query);
    }
    let mut changed = uri.clone().into_parts();
    changed.path_and_query = Some(PathAndQuery::try_from(path).ok()?);
    Uri::from_parts(changed).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_and_a_repeated_version_are_left_out() {
        let path = |sent: &str| meant(&sent.parse().unwrap()).map(|uri| uri.to_string());
        for plain in ["/", "/v1/models", "/v1/models?a=//b/", "/v1/audio/voices/a%2F%2Fb", "*", "/v1/v11/a"] {
            assert_eq!(path(plain), None, "{plain}");
        }
        for (sent, expected) in [
            ("/v1/models/", "/v1/models"),
            ("//v1/models", "/v1/models"),
            ("/v1//audio///speech//", "/v1/audio/speech"),
            ("/v1/v1/models", "/v1/models"),
            ("//v1//v1/v1/models/?model=a//b", "/v1/models?model=a//b"),
            ("///", "/"),
            ("http://host//v1/models/", "http://host/v1/models"),
        ] {
            assert_eq!(path(sent).as_deref(), Some(expected), "{sent}");
        }
    }
}
