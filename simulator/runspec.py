"""One run: what is trained, how it is split, and on what. The checked value of a run file."""

from pydantic import BaseModel, ConfigDict

from hardware.spec import ClusterSpec
from workloads.spec import ModelSpec, OptimizerSpec, ParallelismSpec, TrainingSpec


class RunSpec(BaseModel):
    """A run file, checked (`simulator.loading.load_run`)."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True
    )

    name: str = "run"
    """Title of reports and charts; the file's name without its ending when left out."""
    model: ModelSpec
    """A preset of the catalog, the path of a YAML file, or a mapping of the fields."""
    training: TrainingSpec
    parallelism: ParallelismSpec
    optimizer: OptimizerSpec = OptimizerSpec()
    cluster: ClusterSpec
    seed: int = 0
    """Of the one random generator; nothing random runs unless asked for."""

    @property
    def data_parallel_size(self) -> int:
        """Replicas of the batch: GPUs over tensor x context x pipeline."""
        return self.parallelism.data_parallel_size(self.cluster.num_gpus)

    @property
    def num_microbatches(self) -> int:
        """Microbatches per pipeline and step."""
        sequences = self.training.micro_batch_size * self.data_parallel_size
        return self.training.global_batch_size // sequences
