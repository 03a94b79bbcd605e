//! The file of a cloned voice: safetensors whose metadata names the checkpoint it was made with. Knows no family's tensors.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use izwi_types::InputError;
use safetensors::tensor::TensorView;
use safetensors::{SafeTensorError, SafeTensors};

/// Format of voice packs, in their metadata.
const FORMAT: &str = "izwi-voice-1";

/// The checkpoint that a pack belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PackOwner<'a> {
    /// Name of the family.
    pub(crate) family: &'a str,
    /// Identifies the checkpoint.
    pub(crate) fingerprint: &'a str,
}

impl PackOwner<'_> {
    /// A pack of these tensors, with the text of the recording if it belongs to the voice.
    ///
    /// # Errors
    /// The voice cannot be packed.
    pub(crate) fn write(
        self,
        tensors: Vec<(&str, TensorView<'_>)>,
        text: Option<&str>,
    ) -> Result<Vec<u8>, InputError> {
        let note = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let mut metadata = HashMap::from([
            note("format", FORMAT),
            note("family", self.family),
            note("model", self.fingerprint),
            note("created", &now()),
        ]);
        if let Some(text) = text {
            metadata.insert("text".to_owned(), text.to_owned());
        }
        safetensors::serialize(tensors, Some(metadata)).map_err(unpackable)
    }

    /// The tensors and the metadata of a pack.
    ///
    /// # Errors
    /// It is damaged or was made for another checkpoint.
    pub(crate) fn open(self, pack: &[u8]) -> Result<(SafeTensors<'_>, HashMap<String, String>), InputError> {
        let (_, header) = SafeTensors::read_metadata(pack).map_err(damaged)?;
        let metadata = header.metadata().clone().unwrap_or_default();
        if metadata.get("family").map(String::as_str) != Some(self.family)
            || metadata.get("model").map(String::as_str) != Some(self.fingerprint)
        {
            return Err(refused("was made for another model"));
        }
        Ok((SafeTensors::deserialize(pack).map_err(damaged)?, metadata))
    }
}

/// The error of a pack that is not taken, for this reason.
pub(crate) fn refused(why: &str) -> InputError {
    InputError { param: "voice", message: format!("the voice pack {why}; make it anew from its recording") }
}

/// The error of a damaged pack.
pub(crate) fn damaged(error: SafeTensorError) -> InputError {
    refused(&format!("is damaged: {error}"))
}

/// The error of a voice that no pack holds.
pub(crate) fn unpackable(error: SafeTensorError) -> InputError {
    InputError { param: "ref_audio", message: format!("the voice cannot be packed: {error}") }
}

/// The time now as RFC 3339 has it, in UTC. Days to dates after
/// <https://howardhinnant.github.io/date_algorithms.html> (`civil_from_days`).
fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}Z")
}
