"""torchgeo: segmentation of a made-up scene, with its geographic samplers."""

import geopandas
import pandas as pd
import shapely
import torch
from pyproj import CRS
from torchgeo.datamodules import GeoDataModule
from torchgeo.datasets import GeoDataset
from torchgeo.trainers import SemanticSegmentationTask


class Scene(GeoDataset):
    def __init__(self, split):
        times = pd.IntervalIndex.from_tuples([(pd.Timestamp(2020, 1, 1), pd.Timestamp(2021, 1, 1))])
        places = [shapely.box(0, 0, 128, 128)]
        self.index = geopandas.GeoDataFrame(index=times, geometry=places, crs=CRS.from_epsg(3857))
        self.index.index.name = "datetime"
        self._res = (1.0, 1.0)

    def __getitem__(self, query):
        x, y, _ = query
        rows = torch.linspace(y.start, y.stop, 16)[:, None]
        columns = torch.linspace(x.start, x.stop, 16)[None]
        image = torch.stack([(rows / 9).sin() + 0 * columns, (columns / 9).cos() + 0 * rows])
        mask = (image.sum(0) > 0).long()
        return {"image": image, "mask": mask, "crs": 3857, "bounds": torch.tensor([x.start])}


def data(batch_size=8):
    return GeoDataModule(Scene, batch_size=batch_size, patch_size=16, length=96)


def task():
    return SemanticSegmentationTask("fcn", in_channels=2, num_classes=2, num_filters=4)
