//! Books: EPUB, Markdown, HTML and text.

use izwi_reading::book::Block;

use super::package::zip;
use crate::{Target, scratch};

pub(super) const TARGET: Target = Target { name: "book", run, seeds, max_bytes: 4 << 10 };

const EXTENSIONS: [&str; 4] = ["epub", "md", "html", "txt"];

/// The first byte tells the format.
fn run(bytes: &[u8]) {
    let Some((kind, body)) = bytes.split_first() else { return };
    let path = scratch::file(&format!("book.{}", EXTENSIONS[usize::from(*kind) % EXTENSIONS.len()]), body);
    match izwi_reading::book::read(&path) {
        // An archive unpacks to a thousand times its size, and what is a table or a list is read with words around it.
        Ok(book) => {
            let blocks = book.chapters.into_iter().flat_map(|chapter| chapter.blocks);
            let texts = blocks.filter_map(|block| match block {
                Block::Heading(text) | Block::Paragraph(text) => Some(text),
                Block::Break => None,
            });
            let length: usize = texts.map(|text| text.len()).sum();
            assert!(length <= 20_000 * bytes.len(), "{length} bytes of text for {}", bytes.len());
        }
        Err(error) => {
            let error = error.to_string();
            assert!(error.len() <= 4_000 + 8 * bytes.len(), "a long error of {} bytes", error.len())
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    const CONTAINER: &str = r#"<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
        <rootfile full-path="o/c.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"#;
    const PACKAGE: &str = r#"<package xmlns="http://www.idpf.org/2007/opf" version="3.0"><metadata
        xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>T</dc:title><dc:creator>A</dc:creator></metadata>
        <manifest><item id="n" href="n.xhtml" media-type="application/xhtml+xml" properties="nav"/>
        <item id="a" href="a%20b.xhtml" media-type="application/xhtml+xml"/></manifest>
        <spine toc="x"><itemref idref="a"/></spine></package>"#;
    const NAV: &str = r##"<html xmlns:epub="http://www.idpf.org/2007/ops"><body><nav epub:type="toc"><ol>
        <li><a href="a%20b.xhtml#two">Second</a></li></ol></nav></body></html>"##;
    const PAGE: &str =
        "<html><body><h1>I</h1><p>One&#160;text.</p><h2 id='two'>II</h2><p>Two.</p></body></html>";
    let epub = zip(&[
        ("META-INF/container.xml", CONTAINER.as_bytes()),
        ("o/c.opf", PACKAGE.as_bytes()),
        ("o/n.xhtml", NAV.as_bytes()),
        ("o/a b.xhtml", PAGE.as_bytes()),
    ]);
    let markdown = "---\ntitle: T\n---\n# One\n\n* a\n  1. b\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n[x]: <y>\n\n> **q** `c`\n\n---\n";
    let html = "<!DOCTYPE html><title>T</title><h1>A</h1><p>x<br>y<ul><li>z</ul><table><tr><td>1<td>2</table>\
                <pre>\n k</pre>&amp;&nope;<script>1<2</script><svg><p>q</svg><hr><ruby>a<rt>b</ruby>";
    let text = "Prologue\n\nIt was.\n\nChapter 1\n\nOne line\nand another.\r\n\r\nPart II\n\n\u{feff}End\n";
    let with = |kind: u8, body: &[u8]| [&[kind], body].concat();
    vec![with(0, &epub), with(1, markdown.as_bytes()), with(2, html.as_bytes()), with(3, text.as_bytes())]
}
