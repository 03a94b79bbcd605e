//! Convolution kernels along rows `[rows, channels]` and over planes `[rows, columns, channels]`.

mod conv1d;
mod conv1d_q8;
mod depthwise_conv1d;
mod depthwise_conv2d;
mod gated_conv1d;
pub mod winograd;

pub use conv1d::{ConvPanels, ConvRows, conv1d};
pub use conv1d_q8::{ConvPanelsQ8, ConvRowsQ8, conv1d_q8};
pub use depthwise_conv1d::depthwise_conv1d;
pub use depthwise_conv2d::{DepthwiseConv2d, KERNEL_SIDE};
pub use gated_conv1d::GatedConv1d;
