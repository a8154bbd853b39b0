"""Every model by name, at benchmark size and at test size."""

from collections.abc import Callable
from functools import partial

from turbine.zoo.convnet import cnn, lenet
from turbine.zoo.dcgan import convtranspose
from turbine.zoo.decoder import gpt2, llama
from turbine.zoo.diffusion import latent_unet
from turbine.zoo.encoder import bert, transformer_encoder
from turbine.zoo.example import Example
from turbine.zoo.perceptron import mlp
from turbine.zoo.recommender import embeddingbag
from turbine.zoo.recurrent import bilstm, gru, lstm, rnn
from turbine.zoo.resnet import resnet18
from turbine.zoo.segmentation import unet
from turbine.zoo.video import conv3d
from turbine.zoo.vision_transformer import vit

MODELS: dict[str, Callable[[], Example]] = {
    "mlp": mlp,
    "lenet": lenet,
    "cnn": cnn,
    "rnn": rnn,
    "gru": gru,
    "lstm": lstm,
    "bilstm": bilstm,
    "resnet18": resnet18,
    "unet": unet,
    "latent_unet": latent_unet,
    "vit": vit,
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "transformer_encoder": transformer_encoder,
    "embeddingbag": embeddingbag,
    "conv3d": conv3d,
    "convtranspose": convtranspose,
}

TINY: dict[str, Callable[[], Example]] = {
    "mlp": partial(mlp, batch=2, features=8, hidden=16),
    "lenet": partial(lenet, batch=2, width=2),
    "cnn": partial(cnn, batch=2, width=4),
    "rnn": partial(rnn, batch=2, length=5, features=4, hidden=8),
    "gru": partial(gru, batch=2, length=5, features=4, hidden=8),
    "lstm": partial(lstm, batch=2, length=5, features=4, hidden=8),
    "bilstm": partial(bilstm, batch=2, length=5, features=4, hidden=8),
    "resnet18": partial(resnet18, batch=2, size=32, width=4, classes=10, stages=(1, 2)),
    "unet": partial(unet, batch=2, size=16, width=4, depth=1),
    "latent_unet": partial(latent_unet, size=8, width=8, depth=1, text=12, length=5, heads=2),
    "vit": partial(vit, batch=2, size=16, patch=8, dim=16, layers=1, heads=2, classes=10),
    "bert": partial(bert, batch=2, length=16, vocab=64, dim=16, layers=1, heads=2),
    "gpt2": partial(gpt2, batch=2, length=16, vocab=64, dim=16, layers=2, heads=2),
    "llama": partial(
        llama, batch=2, length=16, vocab=64, dim=16, hidden=32, layers=2, heads=4, kv_heads=2
    ),
    "transformer_encoder": partial(
        transformer_encoder, batch=2, length=16, dim=16, layers=2, heads=2
    ),
    "embeddingbag": partial(embeddingbag, batch=4, tables=3, rows=20, dense=5, dim=8, bag=2),
    "conv3d": partial(conv3d, batch=2, frames=4, size=8, width=2),
    "convtranspose": partial(convtranspose, batch=2, latent=8, width=2, doublings=1),
}
