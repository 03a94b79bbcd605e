//! The model store through its public interface: pulls over loopback HTTP and through fake package clients. No network.

// Marks the whole target as test code for the lints.
#![cfg(test)]

mod downloads;
#[cfg(unix)]
mod failover;
mod faults;
mod home;
#[cfg(unix)]
mod packages;
mod server;
mod store;
mod trust;
