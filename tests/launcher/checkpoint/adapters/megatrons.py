"""Megatron-LM as a few files, laid out as its versions were: what training scripts import, and its checkpoints."""

CORE = """
__version__ = {version!r}
"""
PARALLEL_STATE = """
def get_tensor_model_parallel_rank():
    return 0

def get_pipeline_model_parallel_rank():
    return 0

def get_tensor_model_parallel_world_size():
    return 1

def get_pipeline_model_parallel_world_size():
    return 1

def get_data_parallel_rank({with_context}):
    return 0
"""
ARGUMENTS = """
from types import SimpleNamespace

ARGUMENTS = SimpleNamespace(consumed_train_samples=0, finetune=False, no_load_optim=False)
UPDATED = []

def get_args():
    return ARGUMENTS
{update}
"""
UPDATE = """
def update_num_microbatches(consumed_samples, consistency_check=True):
    UPDATED.append(consumed_samples)
"""
# What Megatron's own training.py does with its own checkpointing.py, in the lines that count.
TRAINING = """
from {training} import get_args
from {training}.checkpointing import load_checkpoint, save_checkpoint


def train(model, optimizer, opt_param_scheduler, step, last, **how):
    args = get_args()
    iteration, num_floating_point_operations_so_far = load_checkpoint(model, optimizer, opt_param_scheduler)
    began = iteration, num_floating_point_operations_so_far, args.consumed_train_samples
    while iteration < last:
        step()
        iteration += 1
        args.consumed_train_samples += 2
        num_floating_point_operations_so_far += {flops}
        save_checkpoint(
            iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far, **how
        )
    return began
"""
OWN = """
def save_checkpoint(iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far):
    raise AssertionError("Megatron's own was called")

def load_checkpoint(model, optimizer, opt_param_scheduler):
    raise AssertionError("Megatron's own was called")
"""
SWAPPED = {
    True: "turnout.launcher.flash_checkpoint.megatron_dist_ckpt",
    False: "turnout.launcher.flash_checkpoint.megatron",
}


def write(folder, version, *, new, distributed=False):
    """A package `megatron` of this version. new: with megatron.training, as from 0.6 on. Gives the training module.

    Its training.py has one line changed, the import of checkpoints.
    """
    package = folder / "megatron"
    training = "megatron.training" if new else "megatron"
    home = package / "training" if new else package
    counts = not version.startswith(("0.3", "0.4"))
    text = TRAINING.format(training=training, flops=100 if counts else 0)
    files = {
        package / "core" / "__init__.py": CORE.format(version=version),
        package / "core" / "parallel_state.py": PARALLEL_STATE.format(
            with_context="with_context_parallel=False" if new else ""
        ),
        home / "__init__.py": ARGUMENTS.format(update=UPDATE),
        home / "checkpointing.py": OWN,
        home / "training.py": text.replace(f"{training}.checkpointing", SWAPPED[distributed]),
    }
    files.setdefault(package / "__init__.py", "")
    for path, each in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(each)
    return f"{training}.training"
