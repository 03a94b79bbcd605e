//! Decodes base64 as clients send it: either alphabet, wrapped lines, missing padding, data URLs.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::DecodeError;

const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// What a data URL has before the comma.
const MARK: &[u8] = b";base64";
/// Symbols that are decoded at once: whole groups of four.
const BLOCK_SYMBOLS: usize = 4096;

pub(super) fn decode(text: &str, max_bytes: usize) -> Result<Vec<u8>, DecodeError> {
    let start = payload_start(text)?;
    let payload = &text.as_bytes()[start..];
    let symbols = payload.iter().filter(|b| !b.is_ascii_whitespace() && **b != b'=').count();
    if symbols.saturating_mul(3) / 4 > max_bytes {
        return Err(DecodeError::TooLarge { limit: max_bytes });
    }
    let mut decoded = Vec::with_capacity(symbols.saturating_mul(3) / 4 + 3);
    // Decoded in blocks: a copy of the whole text without its white space would take as much memory as the text.
    let mut block = Vec::with_capacity(BLOCK_SYMBOLS);
    let mut padded_at = None;
    for (i, &byte) in payload.iter().enumerate() {
        match byte {
            b'=' => padded_at = padded_at.or(Some(start + i)),
            b if b.is_ascii_whitespace() => {}
            _ if padded_at.is_some() => return Err(wrong("padding before the end, at byte", padded_at)),
            b'-' => block.push(b'+'),
            b'_' => block.push(b'/'),
            b if b.is_ascii_alphanumeric() || b == b'+' || b == b'/' => block.push(b),
            _ => return Err(wrong("a character outside the alphabet at byte", Some(start + i))),
        }
        if block.len() == BLOCK_SYMBOLS {
            append(&block, &mut decoded)?;
            block.clear();
        }
    }
    if block.len() % 4 == 1 {
        return Err(wrong("it is cut off: one character is left over at byte", Some(text.len())));
    }
    append(&block, &mut decoded)?;
    Ok(decoded)
}

fn append(symbols: &[u8], decoded: &mut Vec<u8>) -> Result<(), DecodeError> {
    LENIENT.decode_vec(symbols, decoded).map_err(|error| DecodeError::Base64(error.to_string()))
}

fn wrong(what: &str, at: Option<usize>) -> DecodeError {
    DecodeError::Base64(format!("{what} {}", at.unwrap_or_default()))
}

/// Offset of the payload: after the comma of a data URL, otherwise 0.
fn payload_start(text: &str) -> Result<usize, DecodeError> {
    let url = text.trim_start();
    if !url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:")) {
        return Ok(0);
    }
    let Some(comma) = text.find(',') else {
        return Err(DecodeError::Base64("a data: URL without a comma before its data".to_owned()));
    };
    let head = text[..comma].trim_end().as_bytes();
    if head.len().checked_sub(MARK.len()).is_some_and(|at| head[at..].eq_ignore_ascii_case(MARK)) {
        return Ok(comma + 1);
    }
    Err(wrong("a data: URL without ;base64 before the comma at byte", Some(comma)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_alphabets_white_space_and_data_urls_are_accepted() {
        let bytes = [0xfb, 0xff, 0xbf, 0x01];
        for text in [
            "+/+/AQ==",
            "+/+/AQ",
            "-_-_AQ==",
            "-_-_AQ",
            " +/+/\r\nAQ==\n",
            "data:audio/wav;base64,+/+/AQ==",
            "DATA:audio/webm;codecs=opus;BASE64,+/+/\nAQ==",
            "data:;base64,+/+/AQ==",
        ] {
            assert_eq!(decode(text, 4).as_deref(), Ok(&bytes[..]), "{text}");
        }
        assert_eq!(decode("", 4), Ok(Vec::new()));
    }

    #[test]
    fn errors_name_the_position_and_not_the_payload() {
        for (text, part) in [
            ("AAAA$SECRET", "at byte 4"),
            ("AA=ASECRET", "at byte 2"),
            ("AAAAA", "cut off"),
            ("data:audio/wav,SECRET", "without ;base64"),
            ("data:audio/wav;base64", "without a comma"),
            ("data:audio/wav;base64,AA€SECRET", "at byte 24"),
        ] {
            let message = decode(text, 100).unwrap_err().to_string();
            assert!(message.contains(part) && message.contains("send standard base64"), "{message}");
            assert!(!message.contains("SECRET"), "{message}");
        }
    }

    #[test]
    fn the_limit_is_exact_and_checked_first() {
        assert!(decode("AAAAAAAA", 6).is_ok());
        assert_eq!(decode("AAAAAAAA", 5), Err(DecodeError::TooLarge { limit: 5 }));
        assert_eq!(
            decode("$$$$$$$$", 5),
            Err(DecodeError::TooLarge { limit: 5 }),
            "checked before the content"
        );
    }

    proptest! {
        #[test]
        fn any_text_gives_a_result(text in "\\PC*", limit in 0usize..100) {
            let _ = decode(&text, limit);
        }

        #[test]
        fn round_trips(bytes in prop::collection::vec(any::<u8>(), 0..9_000)) {
            let text = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(&bytes);
            prop_assert_eq!(decode(&text, bytes.len()), Ok(bytes));
        }
    }
}
