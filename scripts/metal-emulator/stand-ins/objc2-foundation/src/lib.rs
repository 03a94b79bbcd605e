//! Stand-in for objc2-foundation.
use objc2::rc::Retained;
use std::{
    ffi::{c_char, CString},
    fmt,
    path::Path,
};
pub struct NSString {
    text: String,
    c: CString,
}
impl NSString {
    #[allow(clippy::should_implement_trait)]
    pub fn from_str(text: &str) -> Retained<Self> {
        Retained::from_value(NSString {
            text: text.into(),
            c: CString::new(text.replace('\0', " ")).unwrap(),
        })
    }
    #[allow(non_snake_case)]
    pub fn UTF8String(&self) -> *const c_char {
        self.c.clone().into_raw()
    } // leaked: candle keeps it after the string is gone, where Objective-C autoreleases
    pub fn as_str(&self) -> &str {
        &self.text
    }
}
impl fmt::Display for NSString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
#[derive(Debug)]
pub struct NSError(pub String);
impl NSError {
    pub fn emulate(text: impl Into<String>) -> Retained<Self> {
        Retained::from_value(NSError(text.into()))
    }
    #[allow(non_snake_case)]
    pub fn localizedDescription(&self) -> Retained<NSString> {
        NSString::from_str(&self.0)
    }
}
impl fmt::Display for NSError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
#[derive(Clone, Copy, Debug)]
pub struct NSRange {
    pub location: usize,
    pub length: usize,
}
impl NSRange {
    pub fn new(location: usize, length: usize) -> Self {
        NSRange { location, length }
    }
}
pub struct NSURL(());
impl NSURL {
    pub fn from_file_path<P: AsRef<Path>>(_: P) -> Option<Retained<Self>> {
        Some(Retained::from_value(NSURL(())))
    }
}
pub struct NSArray<T>(pub Vec<Retained<T>>);
impl<T> NSArray<T> {
    pub fn to_vec(&self) -> Vec<Retained<T>> {
        self.0.clone()
    }
}
