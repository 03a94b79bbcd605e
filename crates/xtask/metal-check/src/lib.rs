//! Nothing of its own: the dependencies are what is type-checked.
#![forbid(unsafe_code)]
