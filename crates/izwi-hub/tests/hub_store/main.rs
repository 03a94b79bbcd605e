//! The model store from outside: pulls over loopback HTTP and through stand-ins for package clients. No network.

// Says to the lints that all of this is test code.
#![cfg(test)]

mod downloads;
mod home;
#[cfg(unix)]
mod packages;
mod server;
mod store;
mod trust;
