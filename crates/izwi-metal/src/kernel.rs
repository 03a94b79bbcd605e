//! The kernels and their sources. Knows no tensor.

/// Sources of the kernels, one library each. A source is compiled as it stands.
macro_rules! sources {
    ($($name:ident = $file:literal),+ $(,)?) => {
        /// A source file.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub(crate) enum Source { $(#[doc = $file] $name),+ }

        impl Source {
            /// All of them.
            pub(crate) const ALL: [Self; [$(Self::$name),+].len()] = [$(Self::$name),+];

            pub(crate) fn text(self) -> &'static str {
                match self { $(Self::$name => include_str!(concat!("kernels/", $file))),+ }
            }
        }
    };
}

sources! {
    Attention = "attention.metal",
    CrossAttention = "cross_attention.metal",
    Embedding = "embedding.metal",
    EncoderAttention = "encoder_attention.metal",
    Conv = "conv.metal",
    InstanceNorm = "instance_norm.metal",
    Linear = "linear.metal",
    Relative = "relative.metal",
    Sampling = "sampling.metal",
    Window = "window.metal",
}

/// A kernel: its source and its name there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Kernel(pub(crate) Source, pub(crate) &'static str);

/// Threadgroups and threads of each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    /// Threadgroups.
    pub(crate) groups: [usize; 3],
    /// Threads of a threadgroup.
    pub(crate) threads: usize,
}
