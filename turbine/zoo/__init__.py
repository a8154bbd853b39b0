"""Small but real models, each with the inputs to call it."""

from turbine.zoo.catalog import MODELS as MODELS
from turbine.zoo.catalog import TINY as TINY
from turbine.zoo.convnet import cnn as cnn
from turbine.zoo.convnet import lenet as lenet
from turbine.zoo.dcgan import convtranspose as convtranspose
from turbine.zoo.decoder import gpt2 as gpt2
from turbine.zoo.decoder import llama as llama
from turbine.zoo.diffusion import latent_unet as latent_unet
from turbine.zoo.encoder import bert as bert
from turbine.zoo.encoder import transformer_encoder as transformer_encoder
from turbine.zoo.example import Example as Example
from turbine.zoo.perceptron import mlp as mlp
from turbine.zoo.recommender import embeddingbag as embeddingbag
from turbine.zoo.recurrent import bilstm as bilstm
from turbine.zoo.recurrent import gru as gru
from turbine.zoo.recurrent import lstm as lstm
from turbine.zoo.recurrent import rnn as rnn
from turbine.zoo.resnet import resnet18 as resnet18
from turbine.zoo.segmentation import unet as unet
from turbine.zoo.video import conv3d as conv3d
from turbine.zoo.vision_transformer import vit as vit
