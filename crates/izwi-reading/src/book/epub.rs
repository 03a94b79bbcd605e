//! EPUB 2 and 3: the documents of the spine in order, with the titles of the table of contents.
//!
//! Nothing is unpacked to the disk, and no file outside of the archive is opened. <https://www.w3.org/TR/epub-33/>

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Seek};

use izwi_types::format_bytes;
use percent_encoding::percent_decode_str;
use roxmltree::{Document, Node, ParsingOptions};
use zip::ZipArchive;
use zip::result::ZipError;

use super::html::{self, Chapters};
use super::{Book, Cover, MAX_TEXT_BYTES, Outline, one_line};
use crate::error::BookError;

type Result<T> = std::result::Result<T, BookError>;

/// The most files of an archive.
const MAX_ENTRIES: usize = 20_000;
/// The largest document of a book.
const MAX_DOCUMENT_BYTES: u64 = 16 << 20;
/// The largest picture of a cover.
const MAX_COVER_BYTES: u64 = 8 << 20;
/// The most nodes of the package and its table of contents.
const MAX_NODES: u32 = 1_000_000;
/// Levels of the table of contents whose entries are chapters: parts and their chapters.
const CHAPTER_LEVELS: usize = 2;

/// Reads a book.
///
/// # Errors
/// The archive is damaged, protected, too large, or no EPUB.
pub(super) fn read(file: impl Read + Seek) -> Result<Book> {
    let zip =
        ZipArchive::new(file).map_err(|_| fault("it is no EPUB, or damaged: it has no list of files"))?;
    if zip.len() > MAX_ENTRIES {
        return Err(fault(format!("it has {} files; at most {MAX_ENTRIES} are read", zip.len())));
    }
    let mut archive = Archive { zip, budget: MAX_TEXT_BYTES };
    let container = archive.text("META-INF/container.xml")?;
    let path = {
        let container = xml(&container, "META-INF/container.xml")?;
        let root = container.descendants().find(|node| node.has_tag_name("rootfile") || is(node, "rootfile"));
        let path = root
            .and_then(|node| node.attribute("full-path"))
            .ok_or_else(|| fault("META-INF/container.xml names no package"))?;
        resolve("", path)?.0
    };
    let source = archive.text(&path)?;
    let package = Package::read(&source, &path)?;
    archive.refuse_protected(&package)?;
    let contents = contents(&mut archive, &package)?;

    let mut outline = Outline::default();
    for document in &package.spine {
        let text = archive.text(document)?;
        let mut ids = contents.get(document).cloned().unwrap_or_default();
        match ids.remove("") {
            Some(title) => outline.chapter(&title),
            // A book without a table of contents: each document is a chapter, and called by its heading.
            None if contents.is_empty() => outline.chapter(&own_title(&text).unwrap_or_default()),
            // A document that no entry names goes on with the chapter before.
            None => {}
        }
        html::read(&text, &Chapters::Ids(ids), &mut outline);
    }
    let cover = package.cover.as_ref().and_then(|(path, media_type)| {
        // A book is read without a picture that cannot be.
        let bytes = archive.bytes(path, MAX_COVER_BYTES).ok()?;
        Some(Cover { media_type: media_type.clone(), bytes })
    });
    Ok(Book { title: package.title, author: package.author, cover, chapters: outline.finish() })
}

/// The first heading of a document.
fn own_title(text: &str) -> Option<String> {
    let mut outline = Outline::default();
    html::read(text, &Chapters::Ids(BTreeMap::new()), &mut outline);
    let mut blocks = outline.finish().into_iter().flat_map(|chapter| chapter.blocks);
    blocks.find_map(|block| match block {
        super::Block::Heading(text) => Some(text),
        super::Block::Paragraph(_) | super::Block::Break => None,
    })
}

fn fault(message: impl Into<String>) -> BookError {
    BookError::unusable(message, "name another book, or convert it")
}

fn damaged(path: &str, error: &dyn std::error::Error) -> BookError {
    fault(format!("{path} is damaged: {error}"))
}

struct Archive<R> {
    zip: ZipArchive<R>,
    /// Bytes of text that may still be unpacked.
    budget: u64,
}

impl<R: Read + Seek> Archive<R> {
    /// A file of at most `limit` bytes, whatever its header tells.
    fn bytes(&mut self, path: &str, limit: u64) -> Result<Vec<u8>> {
        let file = self.zip.by_name(path).map_err(|error| match error {
            ZipError::FileNotFound => fault(format!("it has no file {path}")),
            error => damaged(path, &error),
        })?;
        let mut bytes = Vec::new();
        file.take(limit + 1).read_to_end(&mut bytes).map_err(|error| damaged(path, &error))?;
        if bytes.len() as u64 > limit {
            return Err(fault(format!("{path} has more than {}", format_bytes(limit))));
        }
        Ok(bytes)
    }

    fn text(&mut self, path: &str) -> Result<String> {
        let bytes = self.bytes(path, MAX_DOCUMENT_BYTES.min(self.budget))?;
        self.budget -= bytes.len() as u64;
        let text = String::from_utf8(bytes).map_err(|_| fault(format!("{path} is not UTF-8 text")))?;
        Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
    }

    fn refuse_protected(&mut self, package: &Package) -> Result<()> {
        let path = "META-INF/encryption.xml";
        if self.zip.index_for_name(path).is_none() {
            return Ok(());
        }
        let text = self.text(path)?;
        let references = xml(&text, path)?;
        let references = references.descendants().filter(|node| is(node, "CipherReference"));
        for reference in references.filter_map(|node| node.attribute("URI")) {
            // Fonts are often scrambled, which does not matter here.
            if package.spine.contains(&resolve("", reference)?.0) {
                return Err(fault(format!("it is protected against copies (DRM): {reference} is encrypted")));
            }
        }
        Ok(())
    }
}

/// The package document: what the book is and which files it has.
struct Package {
    title: Option<String>,
    author: Option<String>,
    /// Path and media type.
    cover: Option<(String, String)>,
    /// The documents in the order in which they are read.
    spine: Vec<String>,
    /// The table of contents, and whether it is that of EPUB 3.
    contents: Option<(String, bool)>,
}

impl Package {
    fn read(source: &str, path: &str) -> Result<Self> {
        let document = xml(source, path)?;
        let named = |name: &'static str| document.descendants().filter(move |node| is(node, name));
        let text = |name| named(name).map(|node| one_line(&text_of(node))).find(|text| !text.is_empty());
        let mut items = HashMap::new();
        for item in named("item") {
            if let (Some(id), Some(href)) = (item.attribute("id"), item.attribute("href")) {
                let has = |property| {
                    item.attribute("properties").is_some_and(|all| all.split(' ').any(|one| one == property))
                };
                items.insert(
                    id,
                    (href, item.attribute("media-type").unwrap_or_default(), has("nav"), has("cover-image")),
                );
            }
        }
        let mut spine = Vec::new();
        for itemref in named("itemref").filter(|node| node.attribute("linear") != Some("no")) {
            let id = itemref.attribute("idref").unwrap_or_default();
            let &(href, media_type, is_nav, _) = items
                .get(id)
                .ok_or_else(|| fault(format!("{path} lists '{id}', which it does not describe")))?;
            // The table of contents is no text of the book.
            if !is_nav && media_type.contains("html") {
                spine.push(resolve(path, href)?.0);
            }
        }
        if spine.is_empty() {
            return Err(fault(format!("{path} lists no document")));
        }
        let cover_id = named("meta").find(|node| node.attribute("name") == Some("cover"));
        let cover = items.values().find(|item| item.3);
        let cover = cover.or_else(|| items.get(cover_id?.attribute("content")?));
        let cover = cover.filter(|item| item.1.starts_with("image/"));
        let cover = cover.map(|item| Ok::<_, BookError>((resolve(path, item.0)?.0, item.1.to_owned())));
        let nav = items.values().find(|item| item.2).map(|item| (item.0, true));
        let ncx =
            named("spine").find_map(|node| items.get(node.attribute("toc")?)).map(|item| (item.0, false));
        let contents = nav.or(ncx).map(|(href, is_nav)| Ok::<_, BookError>((resolve(path, href)?.0, is_nav)));
        Ok(Self {
            title: text("title"),
            author: text("creator"),
            cover: cover.transpose()?,
            spine,
            contents: contents.transpose()?,
        })
    }
}

/// The titles of the chapters: for each document, by the ids where they begin; "" is its start.
type Contents = HashMap<String, BTreeMap<String, String>>;

fn contents(archive: &mut Archive<impl Read + Seek>, package: &Package) -> Result<Contents> {
    let mut contents = Contents::new();
    let Some((path, is_nav)) = &package.contents else { return Ok(contents) };
    let source = archive.text(path)?;
    // Entities of HTML are none of XML: such a table is as if there were none.
    let Ok(document) = xml(&source, path) else { return Ok(contents) };
    let level = |node: &Node<'_, '_>, name| node.ancestors().filter(|node| is(node, name)).count();
    let mut entries = Vec::new();
    if *is_nav {
        let mut navs = document.descendants().filter(|node| is(node, "nav"));
        let is_toc = |node: &Node<'_, '_>| {
            node.attributes().any(|attribute| attribute.name() == "type" && attribute.value() == "toc")
        };
        let nav = navs.clone().find(is_toc).or_else(|| navs.next());
        for link in nav.into_iter().flat_map(|nav| nav.descendants()).filter(|node| is(node, "a")) {
            entries.push((level(&link, "ol"), link.attribute("href"), text_of(link)));
        }
    } else {
        for point in document.descendants().filter(|node| is(node, "navPoint")) {
            let child = |name| point.children().find(move |node| is(node, name));
            let source = child("content").and_then(|node| node.attribute("src"));
            entries.push((
                level(&point, "navPoint"),
                source,
                child("navLabel").map(text_of).unwrap_or_default(),
            ));
        }
    }
    for (level, href, title) in entries {
        let title = one_line(&title);
        if let Some(href) = href.filter(|_| level <= CHAPTER_LEVELS && !title.is_empty()) {
            let (document, id) = resolve(path, href)?;
            contents.entry(document).or_default().entry(id).or_insert(title);
        }
    }
    contents.retain(|document, _| package.spine.contains(document));
    Ok(contents)
}

/// Parses XML. Entities of the document are expanded within bounds, others are never fetched.
fn xml<'a>(text: &'a str, path: &str) -> Result<Document<'a>> {
    let options = ParsingOptions { allow_dtd: true, nodes_limit: MAX_NODES, ..ParsingOptions::default() };
    Document::parse_with_options(text, options).map_err(|error| damaged(path, &error))
}

/// Whether it is an element of this name, in any namespace.
fn is(node: &Node<'_, '_>, name: &str) -> bool {
    node.is_element() && node.tag_name().name() == name
}

fn text_of(node: Node<'_, '_>) -> String {
    node.descendants().filter_map(|node| node.text().filter(|_| node.is_text())).collect()
}

/// The path in the archive and the id that `href` names in the file `base`.
///
/// # Errors
/// It leads out of the archive.
fn resolve(base: &str, href: &str) -> Result<(String, String)> {
    let (path, id) = href.split_once('#').unwrap_or((href, ""));
    let decoded =
        |text| percent_decode_str(text).decode_utf8().map_err(|_| fault(format!("'{href}' is no path")));
    let path = decoded(path)?;
    let mut parts: Vec<&str> = base.split('/').collect();
    if !path.is_empty() {
        parts.pop();
    }
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop().ok_or_else(|| fault(format!("'{href}' leads out of the archive")))?;
            }
            part => parts.push(part),
        }
    }
    Ok((parts.join("/"), decoded(id)?.into_owned()))
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write as _};

    use zip::write::SimpleFileOptions;

    use super::*;
    use crate::book::tests::shown;

    const CONTAINER: &str = r#"<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
        <rootfile full-path="OEBPS/content.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"#;
    const PACKAGE: &str = r#"<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0">
        <metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>The Book</dc:title><dc:creator>A. Writer</dc:creator></metadata>
        <manifest><item id="n" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>
        <item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/>
        <item id="c" href="img/c.png" media-type="image/png" properties="cover-image"/>
        <item id="b" href="text/b%20b.xhtml" media-type="application/xhtml+xml"/>
        <item id="a" href="text/a.xhtml" media-type="application/xhtml+xml"/></manifest>
        <spine toc="ncx"><itemref idref="n"/><itemref idref="a"/><itemref idref="b"/></spine></package>"#;
    const NAV: &str = r#"<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops"><body>
        <nav epub:type="toc"><ol><li><a href="text/a.xhtml">First</a></li><li><a href="text/b%20b.xhtml#two">Second</a></li></ol></nav></body></html>"#;
    const A: &str = "<html><head><title/></head><body><h1>I</h1><p>One&#160;text.</p></body></html>";
    const B: &str = "<html><body><p>Still the first.</p><h2 id='two'>II</h2><p>Two.</p></body></html>";

    fn epub(changes: &[(&str, &str)]) -> Vec<u8> {
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        let mut files = vec![
            ("META-INF/container.xml", CONTAINER),
            ("OEBPS/content.opf", PACKAGE),
            ("OEBPS/nav.xhtml", NAV),
            ("OEBPS/text/a.xhtml", A),
            ("OEBPS/text/b b.xhtml", B),
            ("OEBPS/img/c.png", "picture"),
        ];
        files.retain(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
        for (name, text) in files.into_iter().chain(changes.iter().copied()) {
            zip.start_file(name, SimpleFileOptions::default()).unwrap();
            zip.write_all(text.as_bytes()).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    fn read_bytes(bytes: Vec<u8>) -> Result<Book> {
        read(Cursor::new(bytes))
    }

    fn error(changes: &[(&str, &str)]) -> String {
        format!("{}", read_bytes(epub(changes)).unwrap_err())
    }

    #[test]
    fn a_book_of_epub_3_has_its_chapters_in_order() {
        let book = read_bytes(epub(&[])).unwrap();
        assert_eq!((book.title.as_deref(), book.author.as_deref()), (Some("The Book"), Some("A. Writer")));
        assert_eq!(
            book.cover.unwrap(),
            Cover { media_type: "image/png".to_owned(), bytes: b"picture".to_vec() }
        );
        let expected = ["# First", "= I", "One text.", "Still the first.", "# Second", "= II", "Two."];
        assert_eq!(shown(&book.chapters), expected);
    }

    #[test]
    fn a_book_of_epub_2_has_its_titles_from_the_ncx() {
        let package = PACKAGE.replace(" properties=\"nav\"", "").replace("<itemref idref=\"n\"/>", "");
        let ncx = r#"<!DOCTYPE ncx PUBLIC "-//NISO//DTD ncx 2005-1//EN" "http://www.daisy.org/z3986/2005/ncx-2005-1.dtd">
            <ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><navMap><navPoint><navLabel><text>Eins</text></navLabel>
            <content src="text/a.xhtml"/></navPoint><navPoint><navLabel><text>Zwei</text></navLabel>
            <content src="text/b%20b.xhtml"/></navPoint></navMap></ncx>"#;
        let book = read_bytes(epub(&[("OEBPS/content.opf", &package), ("OEBPS/toc.ncx", ncx)])).unwrap();
        let titles: Vec<&str> = book.chapters.iter().map(|chapter| &*chapter.title).collect();
        assert_eq!(titles, ["Eins", "Zwei"]);
    }

    #[test]
    fn bombs_are_refused_before_they_unpack() {
        let bomb = " ".repeat(MAX_DOCUMENT_BYTES as usize + 1);
        assert!(epub(&[("OEBPS/text/a.xhtml", &bomb)]).len() < 1 << 20);
        assert!(error(&[("OEBPS/text/a.xhtml", &bomb)]).contains("OEBPS/text/a.xhtml has more than 16.8 MB"));
        let laughs = format!(
            "<!DOCTYPE r [<!ENTITY a \"{}\">{}]><r>&z;</r>",
            "ha".repeat(1_000),
            ('b'..='z')
                .map(|c| format!("<!ENTITY {c} \"{}\">", format!("&{};", (c as u8 - 1) as char).repeat(10)))
                .collect::<String>()
        );
        assert!(error(&[("META-INF/container.xml", &laughs)]).contains("META-INF/container.xml is damaged"));
    }

    #[test]
    fn paths_stay_in_the_archive_and_entities_are_not_fetched() {
        let outside = PACKAGE.replace("text/a.xhtml", "../../etc/passwd");
        assert!(
            error(&[("OEBPS/content.opf", &outside)]).contains("'../../etc/passwd' leads out of the archive")
        );
        let absolute = PACKAGE.replace("text/a.xhtml", "/etc/passwd");
        assert!(error(&[("OEBPS/content.opf", &absolute)]).contains("it has no file OEBPS/etc/passwd"));
        let entity = PACKAGE
            .replace(
                "<?xml version=\"1.0\"?>",
                "<!DOCTYPE package [<!ENTITY x SYSTEM \"file:///etc/passwd\">]>",
            )
            .replace("The Book", "&x;");
        let read = read_bytes(epub(&[("OEBPS/content.opf", &entity)]));
        assert!(read.is_err() || read.unwrap().title.is_none_or(|title| !title.contains("root")));
    }

    #[test]
    fn damaged_and_protected_books_are_told_apart() {
        let whole = epub(&[]);
        assert!(
            format!("{}", read_bytes(whole[..whole.len() / 2].to_vec()).unwrap_err()).contains("damaged")
        );
        let mut flipped = whole;
        let name = b"OEBPS/text/a.xhtml";
        let at = flipped.windows(name.len()).position(|window| window == name).unwrap();
        flipped[at + name.len() + 20] ^= 0x55;
        let error_of_flipped = format!("{}", read_bytes(flipped).unwrap_err());
        assert!(error_of_flipped.contains("OEBPS/text/a.xhtml is damaged"), "{error_of_flipped}");
        assert!(error(&[("OEBPS/content.opf", "<package")]).contains("OEBPS/content.opf is damaged"));
        let drm = "<encryption><CipherReference URI=\"OEBPS/text/a.xhtml\"/></encryption>";
        assert!(error(&[("META-INF/encryption.xml", drm)]).contains("DRM"));
        let font = drm.replace("text/a.xhtml", "font.otf");
        assert!(read_bytes(epub(&[("META-INF/encryption.xml", &font)])).is_ok());
    }
}
