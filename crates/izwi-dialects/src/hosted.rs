//! Names of hosted models, which stand for the default ones. Knows no dialect.

/// The id of a model of this server; `None` for the default one, which an empty name and those that begin like a hosted model
/// stand for.
pub(crate) fn model_of<'a>(name: Option<&'a str>, hosted: &[&str]) -> Option<&'a str> {
    name.filter(|name| !name.is_empty() && !hosted.iter().any(|start| name.starts_with(start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosted_models_stand_for_the_default_one() {
        assert_eq!(model_of(Some("aura-2-thalia-en"), &["aura"]), None);
        assert_eq!(model_of(Some("kestrel"), &["aura"]), Some("kestrel"));
        assert_eq!((model_of(Some(""), &["aura"]), model_of(None, &["aura"])), (None, None));
    }
}
