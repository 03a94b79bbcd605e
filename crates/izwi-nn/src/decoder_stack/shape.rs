//! Sizes of a decoder stack and names of its tensors. Knows no weight.

/// The operator that mixes the positions of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixing {
    /// Attention over all positions before.
    Attention,
    /// A causal convolution.
    Convolution {
        /// Positions it reads, the row's own included.
        taps: usize,
    },
}

/// Which layers a stack has besides attention and convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// RMS norm; heads of queries and keys are normed before the rotation; SiLU-gated feed-forward.
    Gated,
    /// Layer norm with bias; heads as projected; feed-forward with GELU by its approximation with tanh.
    Plain,
}

/// Which elements of a head are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotation {
    /// Element `i` with element `i + head_dim / 2`.
    Halves,
    /// Element `2 i` with element `2 i + 1`.
    Pairs,
}

/// Names of a layer's tensors, relative to the layer, and of the last norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StackNames {
    /// Norm before attention or convolution.
    pub mixing_norm: &'static str,
    /// Query, key and value projections: three names, or one name if they are concatenated in this order.
    pub query_key_value: &'static [&'static str],
    /// Norm of each query head, in a gated stack.
    pub query_norm: &'static str,
    /// Norm of each key head, in a gated stack.
    pub key_norm: &'static str,
    /// Output projection of the attention.
    pub output: &'static str,
    /// A short convolution.
    pub convolution: &'static str,
    /// Norm before the feed-forward.
    pub feed_forward_norm: &'static str,
    /// The projections of the feed-forward: gate, up, down; a plain stack has no gate.
    pub gate_up_down: [&'static str; 3],
    /// Norm after the last layer, if any.
    pub last_norm: Option<&'static str>,
}

impl StackNames {
    /// Names of the transformers library.
    pub const TRANSFORMERS: Self = Self {
        mixing_norm: "input_layernorm",
        query_key_value: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        query_norm: "self_attn.q_norm",
        key_norm: "self_attn.k_norm",
        output: "self_attn.o_proj",
        convolution: "conv",
        feed_forward_norm: "post_attention_layernorm",
        gate_up_down: ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"],
        last_norm: Some("norm"),
    };

    /// Names of Kyutai's models (<https://github.com/kyutai-labs/moshi>).
    pub const KYUTAI: Self = Self {
        mixing_norm: "norm1",
        query_key_value: &["self_attn.in_proj"],
        query_norm: "",
        key_norm: "",
        output: "self_attn.out_proj",
        convolution: "",
        feed_forward_norm: "norm2",
        gate_up_down: ["", "linear1", "linear2"],
        last_norm: None,
    };
}

/// Sizes of a stack.
#[derive(Debug, Clone, PartialEq)]
pub struct StackShape {
    /// Which layers it has.
    pub style: Style,
    /// Width of a row.
    pub width: usize,
    /// Width of the feed-forward.
    pub hidden: usize,
    /// Operator of each layer.
    pub layers: Vec<Mixing>,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; they divide the query heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Of every norm.
    pub eps: f64,
    /// Longest wave length of the rotation, over 2π.
    pub theta: f64,
    /// Which elements are rotated together.
    pub rotation: Rotation,
}
