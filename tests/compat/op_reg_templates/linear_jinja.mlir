{%- set bias_argument = ", %bias: " ~ bias if bias else "" %}
module {
  func.func private @linear(%x: {{ x }}, %w: {{ w }}{{ bias_argument }}) -> {{ result }} {
    %zero = arith.constant 0.0 : f32
    %axis = arith.constant 0 : index
    %rows = tensor.dim %x, %axis : {{ x }}
    %empty = tensor.empty(%rows) : {{ result }}
    %start = linalg.fill ins(%zero : f32) outs(%empty : {{ result }}) -> {{ result }}
    %product = linalg.matmul ins(%x, %w : {{ x }}, {{ w }}) outs(%start : {{ result }}) -> {{ result }}
{%- if bias %}
    %wide = linalg.broadcast ins(%bias : {{ bias }}) outs(%empty : {{ result }}) dimensions = [0]
    %sum = arith.addf %product, %wide : {{ result }}
    return %sum : {{ result }}
{%- else %}
    return %product : {{ result }}
{%- endif %}
  }
}
