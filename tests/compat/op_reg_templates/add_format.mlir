!tensor = {tensor}
module {{
  util.func private @add_{element}(%a: !tensor, %b: !tensor) -> !tensor {{
    %sum = arith.addf %a, %b : !tensor
    util.return %sum : !tensor
  }}
}}
