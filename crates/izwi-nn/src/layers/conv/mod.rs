//! Convolutions over rows of time, and over planes of spectra. Causal convolutions of streams are the codec's.

mod conv1d;
mod conv2d;
mod depthwise_conv2d;
mod packed;
mod same_conv;
mod short_conv;
mod winograd_1d;

pub use conv1d::{Conv1d, Conv1dShape, Padding};
pub use conv2d::{Conv2d, Conv2dShape, Epilogue, Plane};
pub use depthwise_conv2d::DepthwiseConv2d;
pub use packed::{DenseConv, DepthwiseConv, GluConv, StridedConv};
pub use same_conv::{SameConv, UpsamplingConv};
pub use short_conv::{ShortConv, ShortConvShape};
pub use winograd_1d::WinogradConv1d;
