//! Pronunciation dictionaries: saved lexicons in the dialect's shapes. A dictionary has one version, its words now.
//!
//! The id is the name of the lexicon, made of the name that the client gives.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use axum::Json;
use axum::extract::{Multipart, Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use izwi_core::engine::{check_lexicon, ipa_of, lexicon_as_pls, read_lexicon};
use izwi_server::extract::{ApiPath, ApiQuery, check_range, non_blank, parse_json, required};
use izwi_server::lexicons::SavedLexicon;
use izwi_server::openapi::{LexiconCreationRefusals, LexiconRefusals};
use izwi_server::{ApiError, AppState, lexicons, upload};
use izwi_types::{Lexicon, LexiconEntry, excerpt};

use super::api::{
    AddedDictionary, DictionariesPage, DictionariesQuery, Dictionary, DictionaryForm, DictionaryLocator,
    DictionaryRules, DictionaryWithRules, NewDictionary, NewRules, RemovedRules, Rule,
};
use super::is_hosted_id;

/// Dictionaries of a page without `page_size`, and the range of that.
const DEFAULT_PAGE: usize = 30;
const PAGE: std::ops::RangeInclusive<usize> = 1..=100;
/// Characters of an id that is made of a name.
const MAX_ID_CHARS: usize = 48;

/// Save a pronunciation dictionary of rules, as ElevenLabs does
#[utoipa::path(
    post,
    path = "/v1/pronunciation-dictionaries/add-from-rules",
    tag = "dialects",
    request_body = NewDictionary,
    responses((status = 200, description = "The dictionary.", body = AddedDictionary), LexiconCreationRefusals),
)]
pub(super) async fn add_from_rules(
    State(state): State<AppState>,
    request: Request,
) -> Result<Json<AddedDictionary>, ApiError> {
    let body: NewDictionary = parse_json(&upload::read_plain_json(request, &state).await?)?;
    let entries = entries(required("rules", body.rules)?)?;
    let lexicon = Lexicon { language: None, entries };
    check_lexicon(&lexicon).map_err(|error| ApiError::invalid("rules", error.message))?;
    add(&state, body.name, body.description, lexicon).await
}

/// Save a pronunciation dictionary of a PLS file, as ElevenLabs does
#[utoipa::path(
    post,
    path = "/v1/pronunciation-dictionaries/add-from-file",
    tag = "dialects",
    request_body(content = DictionaryForm, content_type = "multipart/form-data"),
    responses((status = 200, description = "The dictionary.", body = AddedDictionary), LexiconCreationRefusals),
)]
pub(super) async fn add_from_file(
    State(state): State<AppState>,
    mut form: Multipart,
) -> Result<Json<AddedDictionary>, ApiError> {
    let broken =
        |error: &axum::extract::multipart::MultipartError| ApiError::MalformedForm(error.to_string());
    let (mut name, mut description, mut file) = (None, None, None);
    while let Some(field) = form.next_field().await.map_err(|error| broken(&error))? {
        let place = match field.name() {
            Some("name") => &mut name,
            Some("description") => &mut description,
            Some("file") => &mut file,
            _ => continue,
        };
        *place = Some(field.text().await.map_err(|error| broken(&error))?);
    }
    let lexicon =
        read_lexicon(&required("file", file)?).map_err(|error| ApiError::invalid("file", error.message))?;
    add(&state, name, description, lexicon).await
}

async fn add(
    state: &AppState,
    name: Option<String>,
    description: Option<String>,
    lexicon: Lexicon,
) -> Result<Json<AddedDictionary>, ApiError> {
    let title = required("name", non_blank(name))?;
    let known = lexicons::names(state).await?;
    let mut saved = SavedLexicon::new(&free_id(&title, &known), lexicon);
    saved.description = non_blank(description);
    saved.title = Some(title).filter(|title| *title != saved.name);
    let saved = lexicons::save(state, saved, false).await?;
    let DictionaryRules { id, version_id, version_rules_num } = rules_of(&saved);
    Ok(Json(AddedDictionary {
        id,
        name: title_of(&saved),
        created_by: "user",
        creation_time_unix: saved.saved_unix_s,
        version_id,
        version_rules_num,
        description: saved.description,
        permission_on_resource: "admin",
    }))
}

/// An id made of a title, which no other lexicon has.
fn free_id(title: &str, known: &[String]) -> String {
    let letters = title.to_lowercase();
    let parts: Vec<&str> =
        letters.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty()).collect();
    let plain: String = parts.join("-").chars().take(MAX_ID_CHARS).collect();
    let plain = if plain.is_empty() { "dictionary".to_owned() } else { plain };
    let mut ids = std::iter::once(plain.clone()).chain((2..).map(|number| format!("{plain}-{number}")));
    ids.find(|id| !known.contains(id)).unwrap_or(plain)
}

/// Pronunciation dictionaries, as ElevenLabs lists them
#[utoipa::path(
    get,
    path = "/v1/pronunciation-dictionaries",
    tag = "dialects",
    params(DictionariesQuery),
    responses((status = 200, description = "The dictionaries of a page.", body = DictionariesPage), LexiconRefusals),
)]
pub(super) async fn list(
    State(state): State<AppState>,
    ApiQuery(query): ApiQuery<DictionariesQuery>,
) -> Result<Json<DictionariesPage>, ApiError> {
    let size = check_range("page_size", query.page_size.unwrap_or(DEFAULT_PAGE), &PAGE)?;
    let cursor = query.cursor.unwrap_or_default();
    let saved = lexicons::all(&state).await?;
    let mut behind = saved.iter().skip_while(|saved| saved.name <= cursor);
    let page: Vec<&SavedLexicon> = behind.by_ref().take(size).collect();
    let has_more = behind.next().is_some();
    let next_cursor = page.last().filter(|_| has_more).map(|last| last.name.clone());
    let pronunciation_dictionaries = page.into_iter().map(describe).collect();
    Ok(Json(DictionariesPage { pronunciation_dictionaries, next_cursor, has_more }))
}

/// A pronunciation dictionary, as ElevenLabs shows it
#[utoipa::path(
    get,
    path = "/v1/pronunciation-dictionaries/{pronunciation_dictionary_id}",
    tag = "dialects",
    params(("pronunciation_dictionary_id" = String, Path, description = "Id of a dictionary.")),
    responses((status = 200, description = "The dictionary.", body = DictionaryWithRules), LexiconRefusals),
)]
pub(super) async fn show(
    State(state): State<AppState>,
    ApiPath(id): ApiPath,
) -> Result<Json<DictionaryWithRules>, ApiError> {
    let saved = lexicons::find(&state, id).await?;
    let rules = saved.lexicon.entries.iter().map(Rule::from).collect();
    Ok(Json(DictionaryWithRules { dictionary: describe(&saved), rules }))
}

/// Add rules to a pronunciation dictionary, as ElevenLabs does
///
/// A rule replaces another one for the same string.
#[utoipa::path(
    post,
    path = "/v1/pronunciation-dictionaries/{pronunciation_dictionary_id}/add-rules",
    tag = "dialects",
    params(("pronunciation_dictionary_id" = String, Path, description = "Id of a dictionary.")),
    request_body = NewRules,
    responses((status = 200, description = "The dictionary.", body = DictionaryRules), LexiconCreationRefusals),
)]
pub(super) async fn add_rules(
    State(state): State<AppState>,
    ApiPath(id): ApiPath,
    request: Request,
) -> Result<Json<DictionaryRules>, ApiError> {
    change_rules(&state, id, request, |known, added| {
        known.retain(|entry| !added.iter().any(|added| added.word == entry.word));
        known.extend(added);
    })
    .await
}

/// Set the rules of a pronunciation dictionary, as ElevenLabs does
#[utoipa::path(
    post,
    path = "/v1/pronunciation-dictionaries/{pronunciation_dictionary_id}/set-rules",
    tag = "dialects",
    params(("pronunciation_dictionary_id" = String, Path, description = "Id of a dictionary.")),
    request_body = NewRules,
    responses((status = 200, description = "The dictionary.", body = DictionaryRules), LexiconCreationRefusals),
)]
pub(super) async fn set_rules(
    State(state): State<AppState>,
    ApiPath(id): ApiPath,
    request: Request,
) -> Result<Json<DictionaryRules>, ApiError> {
    change_rules(&state, id, request, |known, set| *known = set).await
}

async fn change_rules(
    state: &AppState,
    id: String,
    request: Request,
    change: impl FnOnce(&mut Vec<LexiconEntry>, Vec<LexiconEntry>) + Send + 'static,
) -> Result<Json<DictionaryRules>, ApiError> {
    let body: NewRules = parse_json(&upload::read_plain_json(request, state).await?)?;
    let entries = entries(required("rules", body.rules)?)?;
    let change = move |lexicon: &mut Lexicon| {
        change(&mut lexicon.entries, entries);
        check_lexicon(lexicon).map_err(|error| ApiError::invalid("rules", error.message))
    };
    Ok(Json(rules_of(&lexicons::update(state, id, change).await?)))
}

/// Remove rules from a pronunciation dictionary, as ElevenLabs does
#[utoipa::path(
    post,
    path = "/v1/pronunciation-dictionaries/{pronunciation_dictionary_id}/remove-rules",
    tag = "dialects",
    params(("pronunciation_dictionary_id" = String, Path, description = "Id of a dictionary.")),
    request_body = RemovedRules,
    responses((status = 200, description = "The dictionary.", body = DictionaryRules), LexiconCreationRefusals),
)]
pub(super) async fn remove_rules(
    State(state): State<AppState>,
    ApiPath(id): ApiPath,
    request: Request,
) -> Result<Json<DictionaryRules>, ApiError> {
    let body: RemovedRules = parse_json(&upload::read_plain_json(request, &state).await?)?;
    let removed = required("rule_strings", body.rule_strings)?;
    let change = move |lexicon: &mut Lexicon| {
        lexicon.entries.retain(|entry| !removed.contains(&entry.word));
        match lexicon.entries.is_empty() {
            true => Err(ApiError::invalid(
                "rule_strings",
                "rule_strings has all rules; keep one, or remove the lexicon",
            )),
            false => Ok(()),
        }
    };
    Ok(Json(rules_of(&lexicons::update(&state, id, change).await?)))
}

/// A pronunciation dictionary as a PLS file, as ElevenLabs gives it
#[utoipa::path(
    get,
    path = "/v1/pronunciation-dictionaries/{dictionary_id}/{version_id}/download",
    tag = "dialects",
    params(
        ("dictionary_id" = String, Path, description = "Id of a dictionary."),
        ("version_id" = String, Path, description = "Its version; an older one gives the words of now."),
    ),
    responses((status = 200, description = "The file.", body = String, content_type = "text/xml"), LexiconRefusals),
)]
pub(super) async fn download(
    State(state): State<AppState>,
    axum::extract::Path((id, _version)): axum::extract::Path<(String, String)>,
) -> Result<Response, ApiError> {
    let saved = lexicons::find(&state, id).await?;
    Ok(([(header::CONTENT_TYPE, "text/xml")], lexicon_as_pls(&saved.lexicon)).into_response())
}

/// The `known` lexicons that a request locates; `None` for those of all texts. Ids of the hosted service that are not known here have
/// no effect, and are told in `ignored`.
pub(super) fn lexicons_of(
    known: &[String],
    locators: &[DictionaryLocator],
    ignored: &mut Vec<&'static str>,
) -> Result<Option<Vec<String>>, ApiError> {
    const PARAM: &str = "pronunciation_dictionary_locators";
    let mut located = Vec::new();
    for DictionaryLocator { pronunciation_dictionary_id: id } in locators {
        if known.contains(id) {
            located.push(id.clone());
        } else if is_hosted_id(id) {
            ignored.push(PARAM);
        } else {
            let hint = izwi_types::suggest(id, "dictionaries", known.iter().map(String::as_str));
            let message = format!("no pronunciation dictionary '{}' is saved; {hint}", excerpt(id));
            return Err(ApiError::invalid(PARAM, message));
        }
    }
    Ok(Some(located).filter(|located| !located.is_empty()))
}

fn title_of(saved: &SavedLexicon) -> String {
    saved.title.clone().unwrap_or_else(|| saved.name.clone())
}

fn rules_of(saved: &SavedLexicon) -> DictionaryRules {
    let mut version = DefaultHasher::new();
    for LexiconEntry { word, ipa, alias, case_sensitive } in &saved.lexicon.entries {
        (word, ipa, alias, case_sensitive).hash(&mut version);
    }
    DictionaryRules {
        id: saved.name.clone(),
        version_id: format!("{:016x}", version.finish()),
        version_rules_num: saved.lexicon.entries.len(),
    }
}

fn describe(saved: &SavedLexicon) -> Dictionary {
    let DictionaryRules { id, version_id, version_rules_num } = rules_of(saved);
    Dictionary {
        id,
        latest_version_id: version_id,
        latest_version_rules_num: version_rules_num,
        name: title_of(saved),
        permission_on_resource: "admin",
        created_by: "user",
        creation_time_unix: saved.saved_unix_s,
        archived_time_unix: None,
        description: saved.description.clone(),
    }
}

impl From<&LexiconEntry> for Rule {
    fn from(entry: &LexiconEntry) -> Self {
        let is_sounds = entry.ipa.is_some();
        Self {
            kind: Some(if is_sounds { "phoneme" } else { "alias" }.to_owned()),
            string_to_replace: Some(entry.word.clone()),
            alias: entry.alias.clone().filter(|_| !is_sounds),
            phoneme: entry.ipa.clone(),
            alphabet: is_sounds.then(|| "ipa".to_owned()),
            case_sensitive: Some(entry.is_case_sensitive()),
            word_boundaries: Some(true),
        }
    }
}

/// The entries of rules.
fn entries(rules: Vec<Rule>) -> Result<Vec<LexiconEntry>, ApiError> {
    (0..).zip(rules).map(|(at, rule)| entry(at, rule)).collect()
}

fn entry(at: usize, rule: Rule) -> Result<LexiconEntry, ApiError> {
    let refused = |member: &str, message: String| {
        let param = format!("rules[{at}].{member}");
        Err(ApiError::invalid(&param, format!("{param} {message}")))
    };
    let Some(word) = non_blank(rule.string_to_replace) else {
        return refused("string_to_replace", "is missing; it is required".to_owned());
    };
    if rule.word_boundaries == Some(false) {
        return refused(
            "word_boundaries",
            "is false, and only whole words are replaced; leave it out".to_owned(),
        );
    }
    let case_sensitive = Some(rule.case_sensitive.unwrap_or(true));
    match (rule.kind.as_deref(), non_blank(rule.alias), non_blank(rule.phoneme)) {
        (Some("alias"), Some(alias), _) => {
            Ok(LexiconEntry { word, ipa: None, alias: Some(alias), case_sensitive })
        }
        (Some("phoneme"), _, Some(phoneme)) => {
            match ipa_of(rule.alphabet.as_deref().unwrap_or("ipa"), &phoneme) {
                Ok(ipa) => Ok(LexiconEntry { word, ipa: Some(ipa), alias: None, case_sensitive }),
                Err(message) => refused("alphabet", format!("cannot be used: {message}")),
            }
        }
        (Some(kind @ ("alias" | "phoneme")), ..) => refused(kind, "is missing; it is required".to_owned()),
        (kind, ..) => {
            let shown = excerpt(kind.unwrap_or_default());
            refused("type", format!("is '{shown}'; it must be alias or phoneme"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_made_of_names() {
        let known = ["my-brands".to_owned(), "my-brands-2".to_owned()];
        for (title, expected) in
            [("My Brands!", "my-brands-3"), ("names", "names"), ("日本", "dictionary"), ("--", "dictionary")]
        {
            assert_eq!(free_id(title, &known), expected);
        }
        assert!(free_id(&"long ".repeat(40), &known).len() <= MAX_ID_CHARS + 4);
    }

    #[test]
    fn rules_are_entries() {
        let rules = r#"[{"type":"alias","string_to_replace":"UN","alias":"United Nations"},
            {"type":"phoneme","string_to_replace":"car","phoneme":"K AA1 R","alphabet":"cmu-arpabet","case_sensitive":false}]"#;
        let read = entries(serde_json::from_str(rules).unwrap()).unwrap();
        assert_eq!(
            (read[0].alias.as_deref(), read[1].ipa.as_deref()),
            (Some("United Nations"), Some("kˈɑɹ"))
        );
        assert!(read[0].is_case_sensitive() && !read[1].is_case_sensitive());
        let shown = read.iter().map(|entry| serde_json::to_value(Rule::from(entry)).unwrap());
        let expected = serde_json::json!([
            {"type": "alias", "string_to_replace": "UN", "alias": "United Nations", "case_sensitive": true, "word_boundaries": true},
            {"type": "phoneme", "string_to_replace": "car", "phoneme": "kˈɑɹ", "alphabet": "ipa", "case_sensitive": false, "word_boundaries": true},
        ]);
        assert_eq!(serde_json::Value::from_iter(shown), expected);
        for (rule, param) in [
            (r#"{"type":"alias","alias":"a"}"#, "rules[0].string_to_replace"),
            (r#"{"type":"alias","string_to_replace":"a"}"#, "rules[0].alias"),
            (
                r#"{"type":"phoneme","string_to_replace":"a","phoneme":"a","alphabet":"x"}"#,
                "rules[0].alphabet",
            ),
            (r#"{"type":"x","string_to_replace":"a"}"#, "rules[0].type"),
            (
                r#"{"type":"alias","string_to_replace":"a","alias":"b","word_boundaries":false}"#,
                "rules[0].word_boundaries",
            ),
        ] {
            let error = entries(vec![serde_json::from_str(rule).unwrap()]).unwrap_err();
            assert_eq!(error.param(), Some(param), "{error}");
        }
    }
}
