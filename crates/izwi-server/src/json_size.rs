//! How much of a JSON object is outside of its recordings. Knows no request.
//!
//! A large body is measured before it is read: the error about a value of the wrong type holds the whole value.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Size that counts for a value that is not text.
const PLAIN_BYTES: usize = 8;

/// Bytes of the members of a JSON object, text unescaped, without the members named in `recordings`.
///
/// # Errors
/// The text is not a JSON object.
pub(crate) fn beside_recordings(json: &[u8], recordings: &[&str]) -> serde_json::Result<usize> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let size = reader.deserialize_map(Members { recordings })?;
    reader.end()?;
    Ok(size)
}

struct Members<'a> {
    recordings: &'a [&'a str],
}

impl<'de> Visitor<'de> for Members<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<usize, A::Error> {
        let mut size = 0;
        while let Some((key_size, is_recording)) = map.next_key_seed(Key(self.recordings))? {
            if is_recording {
                map.next_value::<IgnoredAny>()?;
            } else {
                size += key_size + map.next_value_seed(Size)?;
            }
        }
        Ok(size)
    }
}

/// The size of a key, and whether it names a recording.
struct Key<'a>(&'a [&'a str]);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = (usize, bool);

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = (usize, bool);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a member")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok((key.len(), self.0.contains(&key)))
    }
}

/// The size of any value.
struct Size;

impl<'de> DeserializeSeed<'de> for Size {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<usize, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Size {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<usize, E> {
        Ok(PLAIN_BYTES)
    }

    fn visit_i64<E>(self, _: i64) -> Result<usize, E> {
        Ok(PLAIN_BYTES)
    }

    fn visit_u64<E>(self, _: u64) -> Result<usize, E> {
        Ok(PLAIN_BYTES)
    }

    fn visit_f64<E>(self, _: f64) -> Result<usize, E> {
        Ok(PLAIN_BYTES)
    }

    fn visit_unit<E>(self) -> Result<usize, E> {
        Ok(PLAIN_BYTES)
    }

    fn visit_str<E>(self, text: &str) -> Result<usize, E> {
        Ok(text.len())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<usize, A::Error> {
        let mut size = PLAIN_BYTES;
        while let Some(element) = elements.next_element_seed(Size)? {
            size += element;
        }
        Ok(size)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<usize, A::Error> {
        Ok(PLAIN_BYTES + Members { recordings: &[] }.visit_map(map)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_do_not_count() {
        let size = |json: &str| beside_recordings(json.as_bytes(), &["audio", "ref_audio"]).ok();
        assert_eq!(size("{}"), Some(0));
        assert_eq!(size(r#"{"audio":"AAAA","ref_audio":["x"],"model":"abc"}"#), Some(8));
        assert_eq!(size(r#"{"a":{"audio":"AAAA"},"b":[1,"xyz",null]}"#), Some(1 + 8 + 9 + 1 + 8 + 8 + 3 + 8));
        for broken in ["", "[]", "{", r#"{"a":1}x"#, r#"{"a":}"#] {
            assert_eq!(size(broken), None, "{broken}");
        }
        assert!(beside_recordings("[".repeat(1 << 20).as_bytes(), &[]).is_err());
        assert!(beside_recordings(format!("{{\"a\":{}", "[".repeat(1 << 20)).as_bytes(), &[]).is_err());
    }
}
