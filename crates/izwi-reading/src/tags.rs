//! What a file tells of the book: title, author, cover, and where chapters begin. ID3 for MP3, Vorbis comments for Opus and FLAC.

use base64::Engine as _;
use id3::frame::{self, PictureType};
use id3::{Encoder, Frame, Tag, TagLike as _, Version};

use crate::book::Cover;
use crate::error::{BindError, Result};

/// The tags of one file.
#[derive(Debug)]
pub(crate) struct Tags<'a> {
    pub(crate) title: &'a str,
    pub(crate) author: Option<&'a str>,
    /// The title of the book.
    pub(crate) album: &'a str,
    /// Its number and that of all, of a chapter's file.
    pub(crate) track: Option<(usize, usize)>,
    pub(crate) cover: Option<&'a Cover>,
    /// Titles of the chapters and their starts, in seconds; of a book in one file.
    pub(crate) chapters: Vec<(&'a str, f64)>,
    /// Duration of the file.
    pub(crate) seconds: f64,
}

impl Tags<'_> {
    /// The tag at the start of an MP3 file. Chapters: <https://id3.org/id3v2-chapters-1.0>
    pub(crate) fn id3(&self) -> Result<Vec<u8>> {
        let mut tag = Tag::new();
        tag.set_title(self.title);
        tag.set_album(self.album);
        tag.set_genre("Audiobook");
        self.author.into_iter().for_each(|author| tag.set_artist(author));
        if let Some((number, count)) = self.track {
            tag.set_track(u32::try_from(number).unwrap_or(u32::MAX));
            tag.set_total_tracks(u32::try_from(count).unwrap_or(u32::MAX));
        }
        if let Some(cover) = self.cover {
            tag.add_frame(frame::Picture {
                mime_type: cover.media_type.clone(),
                picture_type: PictureType::CoverFront,
                description: String::new(),
                data: cover.bytes.clone(),
            });
        }
        let ms = |seconds: f64| (seconds * 1e3).round() as u32;
        let ends = self.chapters.iter().skip(1).map(|(_, start)| *start).chain([self.seconds]);
        let mut elements = Vec::new();
        for ((title, start), end) in self.chapters.iter().zip(ends) {
            let element_id = format!("chp{}", elements.len());
            elements.push(element_id.clone());
            tag.add_frame(frame::Chapter {
                element_id,
                start_time: ms(*start),
                end_time: ms(end),
                // Times count, not bytes.
                start_offset: u32::MAX,
                end_offset: u32::MAX,
                frames: vec![Frame::text("TIT2", *title)],
            });
        }
        // A table counts its entries in one byte; players without one go by the chapters.
        if !elements.is_empty() && elements.len() <= usize::from(u8::MAX) {
            tag.add_frame(frame::TableOfContents {
                element_id: "toc".to_owned(),
                top_level: true,
                ordered: true,
                elements,
                frames: Vec::new(),
            });
        }
        let mut bytes = Vec::new();
        Encoder::new()
            .version(Version::Id3v24)
            .encode(&tag, &mut bytes)
            .map_err(|error| BindError::audio("cannot write the tag", &error))?;
        Ok(bytes)
    }

    /// Vorbis comments. Chapters: <https://wiki.xiph.org/Chapter_Extension>
    pub(crate) fn comments(&self) -> Vec<(String, String)> {
        let mut comments =
            vec![("TITLE".to_owned(), self.title.to_owned()), ("ALBUM".to_owned(), self.album.to_owned())];
        let mut add = |name: String, value: String| comments.push((name, value));
        add("GENRE".to_owned(), "Audiobook".to_owned());
        self.author.into_iter().for_each(|author| add("ARTIST".to_owned(), author.to_owned()));
        if let Some((number, count)) = self.track {
            add("TRACKNUMBER".to_owned(), number.to_string());
            add("TRACKTOTAL".to_owned(), count.to_string());
        }
        if let Some(cover) = self.cover {
            add("METADATA_BLOCK_PICTURE".to_owned(), picture(cover));
        }
        for (number, (title, start)) in (0..).zip(&self.chapters) {
            let ms = (start * 1e3).round() as u64;
            let (hours, minutes, seconds) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60);
            add(
                format!("CHAPTER{number:03}"),
                format!("{hours:02}:{minutes:02}:{seconds:02}.{:03}", ms % 1_000),
            );
            add(format!("CHAPTER{number:03}NAME"), (*title).to_owned());
        }
        comments
    }
}

/// A picture of FLAC in base64, RFC 9639 §8.8: kind, media type, no description, no size, no depth, bytes.
fn picture(cover: &Cover) -> String {
    let mut block = 3u32.to_be_bytes().to_vec();
    block.extend((cover.media_type.len() as u32).to_be_bytes());
    block.extend(cover.media_type.as_bytes());
    block.extend([0; 20]);
    block.extend((cover.bytes.len() as u32).to_be_bytes());
    block.extend(&cover.bytes);
    base64::engine::general_purpose::STANDARD.encode(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chapters_are_in_both_kinds_of_tags() {
        let cover = Cover { media_type: "image/png".to_owned(), bytes: vec![1, 2, 3] };
        let tags = Tags {
            title: "Book",
            author: Some("Éva"),
            album: "Book",
            track: None,
            cover: Some(&cover),
            chapters: vec![("One", 0.0), ("Zwei ä", 3_661.5)],
            seconds: 4_000.25,
        };
        let tag = Tag::read_from2(std::io::Cursor::new(tags.id3().unwrap())).unwrap();
        assert_eq!((tag.title(), tag.artist()), (Some("Book"), Some("Éva")));
        let chapters: Vec<_> = tag.chapters().map(|chapter| (chapter.start_time, chapter.end_time)).collect();
        assert_eq!(chapters, [(0, 3_661_500), (3_661_500, 4_000_250)]);
        assert_eq!(tag.tables_of_contents().next().unwrap().elements, ["chp0", "chp1"]);
        assert_eq!(tag.pictures().next().unwrap().data, [1, 2, 3]);
        let comments = tags.comments();
        let value = |name: &str| &*comments.iter().find(|(found, _)| found == name).unwrap().1;
        assert_eq!((value("CHAPTER001"), value("CHAPTER001NAME")), ("01:01:01.500", "Zwei ä"));
        assert_eq!(value("ARTIST"), "Éva");
    }
}
