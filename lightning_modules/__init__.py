"""What a run trains: data, models, the LightningModule. Everything that imports torch."""
