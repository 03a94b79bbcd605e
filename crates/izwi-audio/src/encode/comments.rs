//! Vorbis comments, which Opus and FLAC share. <https://www.xiph.org/vorbis/doc/v-comment.html>

/// The vendor and the comments, without the framing bit of Vorbis.
pub(super) fn vorbis_comments(comments: &[(String, String)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, "izwi");
    bytes.extend((comments.len() as u32).to_le_bytes());
    for (name, value) in comments {
        put(&mut bytes, &format!("{name}={value}"));
    }
    bytes
}

fn put(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.as_bytes());
}
