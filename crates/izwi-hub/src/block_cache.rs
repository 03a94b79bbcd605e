//! A bounded cache of blocks of bytes in files, by 128-bit names. Each is sealed: what was damaged or exchanged is not read.
//!
//! Owns files, the key and the limit. Whatever is in it may be gone at any time. Knows nothing of what the blocks hold.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::files;
use crate::home;
use crate::io_error::IoError;

const KEY_BYTES: usize = 32;
const KEY_FILE: &str = "key";
const LOCK_FILE: &str = "lock";
/// Start of the name of a folder whose key is in the memory of one process.
const PRIVATE: &str = "private-";
/// Folder of the caches in the home folder.
const FOLDER: &str = "kv-cache";
/// A cache that was not used for so long is removed.
const UNUSED: Duration = Duration::from_secs(30 * 86_400);
/// Extension of a file that is being written.
const PART: &str = "part";

/// The cache of one folder. Every method but [`Self::has`] and [`Self::bytes`] blocks on the disk.
#[derive(Debug)]
pub struct BlockCache {
    folder: PathBuf,
    /// The most bytes of its files.
    limit: u64,
    key: LessSafeKey,
    random: SystemRandom,
    index: Mutex<Index>,
    /// Locked while the process uses a private folder; `None` for another.
    private: Option<File>,
}

/// The files, from the least to the most recently used.
#[derive(Debug, Default)]
struct Index {
    /// When each was used last, and its bytes.
    files: HashMap<u128, (u64, u64)>,
    by_use: BTreeMap<u64, u128>,
    bytes: u64,
    clock: u64,
}

impl Index {
    fn put(&mut self, name: u128, bytes: u64) {
        self.forget(name);
        self.clock += 1;
        self.bytes += bytes;
        self.files.insert(name, (self.clock, bytes));
        self.by_use.insert(self.clock, name);
    }

    fn forget(&mut self, name: u128) {
        if let Some((used, bytes)) = self.files.remove(&name) {
            self.by_use.remove(&used);
            self.bytes -= bytes;
        }
    }

    /// Drops the least recently used until `bytes` more stay within `limit`. Returns what it dropped.
    fn make_room(&mut self, bytes: u64, limit: u64) -> Vec<u128> {
        let mut dropped = Vec::new();
        while self.bytes + bytes > limit {
            let Some((_, name)) = self.by_use.pop_first() else { break };
            self.forget(name);
            dropped.push(name);
        }
        dropped
    }
}

impl BlockCache {
    /// The folder of this name in the home folder `home`, by default the user's; `None` where no such folder can be named.
    pub fn folder(home: Option<PathBuf>, name: &str) -> Option<PathBuf> {
        Some(home::folder(home)?.join(FOLDER).join(name))
    }

    /// Removes what processes that have ended left behind in all caches of the home folder, and caches in which nothing was
    /// written or read for a month. Blocks on the disk.
    pub fn clean(home: Option<PathBuf>) {
        let Some(root) = home::folder(home).map(|home| home.join(FOLDER)) else { return };
        for cache in fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path()) {
            remove_abandoned(&cache);
            let entries = fs::read_dir(&cache).into_iter().flatten().flatten();
            let found = entries.map(|entry| entry.metadata()).chain([fs::metadata(&cache)]);
            let used = found.filter_map(|found| found.ok()?.modified().ok()).max();
            if used.is_some_and(|used| used.elapsed().is_ok_and(|age| age > UNUSED)) {
                let _ = files::remove_folder(&cache);
            }
        }
    }

    /// The cache in `folder`, which is made if it does not exist. A private one begins empty, in a folder of its own, and
    /// nobody can read it once the process has ended: its key is in memory alone. Otherwise the key is in a file next to the
    /// blocks, which only their owner can read.
    ///
    /// # Errors
    /// The folder cannot be made or read, or the system gives no random numbers.
    pub fn open(folder: &Path, limit: u64, is_private: bool) -> Result<Self, IoError> {
        files::create_private_folder(folder)?;
        remove_abandoned(folder);
        let random = SystemRandom::new();
        let (folder, key, lock) = if is_private {
            let folder =
                folder.join(format!("{PRIVATE}{:016x}", u64::from_le_bytes(fresh(&random, folder)?)));
            files::create_private_folder(&folder)?;
            let path = folder.join(LOCK_FILE);
            let lock = || {
                let file = files::private_file().create(true).truncate(true).open(&path)?;
                file.lock().map(|()| file)
            };
            let lock = lock().map_err(IoError::at("lock", &path))?;
            (folder.clone(), fresh(&random, &folder)?, Some(lock))
        } else {
            let path = folder.join(KEY_FILE);
            let key = saved_key(&path, &random).map_err(IoError::at("open", &path))?;
            (folder.to_path_buf(), key, None)
        };
        let index = scan(&folder).map_err(IoError::at("read", &folder))?;
        let key = UnboundKey::new(&AES_256_GCM, &key).map_err(|_| no_random(&folder))?;
        let cache = Self {
            limit,
            key: LessSafeKey::new(key),
            random,
            index: Mutex::new(index),
            private: lock,
            folder,
        };
        let dropped = cache.lock().make_room(0, limit);
        cache.remove(&dropped);
        Ok(cache)
    }

    /// Whether its key is in memory alone.
    pub fn is_private(&self) -> bool {
        self.private.is_some()
    }

    /// Whether it has a block.
    pub fn has(&self, name: u128) -> bool {
        self.lock().files.contains_key(&name)
    }

    /// Bytes of its files.
    pub fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// Keeps a block, in place of the least recently used ones if there is no room. One that is longer than the limit is not
    /// kept.
    ///
    /// # Errors
    /// The file cannot be written: the block is not kept.
    pub fn write(&self, name: u128, mut block: Vec<u8>) -> Result<(), IoError> {
        let nonce: [u8; NONCE_LEN] = fresh(&self.random, &self.folder)?;
        let sealed = self.key.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(name.to_le_bytes()),
            &mut block,
        );
        sealed.map_err(|_| no_random(&self.folder))?;
        let bytes = (NONCE_LEN + block.len()) as u64;
        if bytes > self.limit {
            return Ok(());
        }
        let dropped = self.lock().make_room(bytes, self.limit);
        self.remove(&dropped);
        let path = self.path(name);
        let part = path.with_extension(PART);
        let write = || {
            let mut file = files::private_file().create(true).truncate(true).open(&part)?;
            file.write_all(&nonce)?;
            file.write_all(&block)?;
            fs::rename(&part, &path)
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&part);
            IoError::at("write", &part)(error)
        })?;
        self.lock().put(name, bytes);
        Ok(())
    }

    /// A block, which becomes the most recently used; `None` if there is none. A damaged one is removed.
    pub fn read(&self, name: u128) -> Option<Vec<u8>> {
        if !self.has(name) {
            return None;
        }
        let path = self.path(name);
        let read = || -> io::Result<Vec<u8>> {
            let mut file = OpenOptions::new().read(true).write(true).open(&path)?;
            let mut sealed = Vec::new();
            file.read_to_end(&mut sealed)?;
            file.set_modified(SystemTime::now())?;
            Ok(sealed)
        };
        let opened = read().ok().and_then(|sealed| {
            let bytes = sealed.len() as u64;
            Some((self.unseal(name, sealed)?, bytes))
        });
        match opened {
            Some((block, bytes)) => {
                self.lock().put(name, bytes);
                Some(block)
            }
            None => {
                tracing::warn!(path = %path.display(), "a cached block is missing or damaged and is computed again");
                self.lock().forget(name);
                self.remove(&[name]);
                None
            }
        }
    }

    fn unseal(&self, name: u128, mut sealed: Vec<u8>) -> Option<Vec<u8>> {
        let nonce: [u8; NONCE_LEN] = sealed.get(..NONCE_LEN)?.try_into().ok()?;
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened =
            self.key.open_within(nonce, Aad::from(name.to_le_bytes()), &mut sealed, NONCE_LEN..).ok()?.len();
        sealed.truncate(opened);
        Some(sealed)
    }

    fn path(&self, name: u128) -> PathBuf {
        self.folder.join(format!("{name:032x}"))
    }

    fn remove(&self, names: &[u128]) {
        for &name in names {
            let _ = fs::remove_file(self.path(name));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fresh<const N: usize>(random: &SystemRandom, folder: &Path) -> Result<[u8; N], IoError> {
    let mut bytes = [0; N];
    random.fill(&mut bytes).map_err(|_| no_random(folder))?;
    Ok(bytes)
}

fn no_random(folder: &Path) -> IoError {
    IoError::at("seal blocks in", folder)(io::Error::other("the system gives no random numbers"))
}

/// The key in a file, which is made if it does not exist or is damaged.
fn saved_key(path: &Path, random: &SystemRandom) -> io::Result<[u8; KEY_BYTES]> {
    let read = || fs::read(path).ok().and_then(|key| <[u8; KEY_BYTES]>::try_from(key).ok());
    if let Some(key) = read() {
        return Ok(key);
    }
    let mut key = [0; KEY_BYTES];
    random.fill(&mut key).map_err(|_| io::Error::other("the system gives no random numbers"))?;
    let part = path.with_extension(PART);
    let mut file = files::private_file().create(true).truncate(true).open(&part)?;
    file.write_all(&key)?;
    file.sync_all()?;
    fs::rename(&part, path)?;
    // Of two processes at once, the second to rename has made the key of both.
    read().ok_or_else(|| io::Error::other("the key cannot be read"))
}

/// The blocks of a folder by the times of their files. Removes what was not written to its end.
fn scan(folder: &Path) -> io::Result<Index> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)?.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let Some(name) = name.to_str() else { continue };
        if path.extension().is_some_and(|extension| extension == PART) {
            let _ = fs::remove_file(&path);
        }
        let Some(name) = u128::from_str_radix(name, 16).ok().filter(|_| name.len() == 32) else { continue };
        if let Ok(metadata) = entry.metadata() {
            found.push((metadata.modified().ok(), name, metadata.len()));
        }
    }
    found.sort_unstable();
    let mut index = Index::default();
    found.into_iter().for_each(|(_, name, bytes)| index.put(name, bytes));
    Ok(index)
}

/// Removes private folders of processes that have ended.
fn remove_abandoned(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_private = entry.file_name().to_str().is_some_and(|name| name.starts_with(PRIVATE));
        let lock = OpenOptions::new().write(true).open(entry.path().join(LOCK_FILE));
        // A folder without a lock is being made at this moment, or its process was killed then.
        if is_private && lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
            let _ = files::remove_folder(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1 << 20;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().flatten();
        entries.map(|entry| entry.file_name().to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn blocks_survive_a_restart_and_are_not_readable_in_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let secret = b"what was said in private".repeat(20);
        let cache = BlockCache::open(folder.path(), LIMIT, false).unwrap();
        cache.write(7, secret.clone()).unwrap();
        drop(cache);
        let file = fs::read(folder.path().join(format!("{:032x}", 7))).unwrap();
        assert!(!file.windows(7).any(|part| part == b"private"));
        let cache = BlockCache::open(folder.path(), LIMIT, false).unwrap();
        assert_eq!((cache.read(7), cache.read(8)), (Some(secret), None));
    }

    #[test]
    fn private_blocks_are_gone_with_their_process_and_leave_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = [(); 2].map(|()| BlockCache::open(folder.path(), LIMIT, true).unwrap()).into();
        one.write(7, vec![1; 100]).unwrap();
        assert_eq!((one.read(7), other.read(7)), (Some(vec![1; 100]), None));
        assert_eq!(names(folder.path()).len(), 2, "a folder in use is left alone");
        drop((one, other));
        let next = BlockCache::open(folder.path(), LIMIT, true).unwrap();
        assert_eq!((next.read(7), names(folder.path()).len()), (None, 1));
    }

    #[test]
    fn damaged_and_exchanged_blocks_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let cache = BlockCache::open(folder.path(), LIMIT, false).unwrap();
        let path = |name: u128| folder.path().join(format!("{name:032x}"));
        (1..=4).for_each(|name| cache.write(name, vec![name as u8; 100]).unwrap());
        let mut file = fs::read(path(1)).unwrap();
        file[50] ^= 1;
        fs::write(path(1), file).unwrap();
        fs::copy(path(3), path(2)).unwrap();
        fs::write(path(3), b"short").unwrap();
        fs::remove_file(path(4)).unwrap();
        for name in 1..=4 {
            assert_eq!((cache.read(name), cache.has(name), path(name).exists()), (None, false, false));
        }
        assert_eq!(cache.bytes(), 0);
        fs::write(folder.path().join(KEY_FILE), b"short").unwrap();
        let cache = BlockCache::open(folder.path(), LIMIT, false).unwrap();
        cache.write(1, vec![9]).unwrap();
        assert_eq!(cache.read(1), Some(vec![9]));
    }

    #[test]
    fn the_least_recently_used_make_room() {
        let folder = tempfile::tempdir().unwrap();
        let cache = BlockCache::open(folder.path(), 400, false).unwrap();
        (1..=3).for_each(|name| cache.write(name, vec![0; 100]).unwrap());
        assert!(cache.read(1).is_some());
        cache.write(4, vec![0; 100]).unwrap();
        assert_eq!([1, 2, 3, 4].map(|name| cache.has(name)), [true, false, true, true]);
        assert!(cache.bytes() <= 400);
        cache.write(5, vec![0; 1_000]).unwrap();
        assert!(!cache.has(5) && cache.has(1), "one that never fits displaces nothing");
        drop(cache);
        let cache = BlockCache::open(folder.path(), 150, false).unwrap();
        assert!(cache.bytes() <= 150);
    }

    #[test]
    fn caches_of_the_past_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let folder = |name: &str| BlockCache::folder(Some(home.path().to_owned()), name).unwrap();
        let open = |name: &str, is_private| BlockCache::open(&folder(name), LIMIT, is_private).unwrap();
        let (running, ended) = (open("running", true), open("ended", true));
        ["new", "old"].iter().for_each(|name| open(name, false).write(7, vec![1]).unwrap());
        let past = SystemTime::now() - 2 * UNUSED;
        for entry in fs::read_dir(folder("old")).unwrap().flatten() {
            OpenOptions::new().write(true).open(entry.path()).unwrap().set_modified(past).unwrap();
        }
        File::open(folder("old")).unwrap().set_modified(past).unwrap();
        drop(ended);
        BlockCache::clean(Some(home.path().to_owned()));
        let mut left = names(&home.path().join(FOLDER));
        left.sort();
        assert_eq!(left, ["ended", "new", "running"]);
        let held = ["ended", "running"].map(|name| names(&folder(name)).len());
        assert_eq!((held, running.read(7)), ([0, 1], None));
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_can_read_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("blocks");
        BlockCache::open(&folder, LIMIT, false).unwrap().write(7, vec![1]).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join(KEY_FILE))), (0o700, 0o600));
        assert_eq!(mode(&folder.join(format!("{:032x}", 7))), 0o600);
    }
}
