"""Two trainers of the checkout; one has a name that promptcal uses too."""
import torch
from dassl.engine import TRAINER_REGISTRY, TrainerX
from dassl.optim import build_lr_scheduler


@TRAINER_REGISTRY.register()
class Colour(TrainerX):
    """A linear classifier of the mean colour."""

    def build_model(self):
        torch.manual_seed(0)
        last = torch.nn.Linear(3, self.num_classes)
        self.model = torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten(), last)
        self.optim = torch.optim.SGD(self.model.parameters(), lr=self.cfg.OPTIM.LR, momentum=0.9)
        self.sched = build_lr_scheduler(self.optim, self.cfg.OPTIM)
        self.register_model("linear", self.model, self.optim, self.sched)

    def forward_backward(self, batch):
        self.optim.zero_grad()
        torch.nn.functional.cross_entropy(self.model(batch["img"]), batch["label"]).backward()
        self.optim.step()
        print(f"rate {self.optim.param_groups[0]['lr']:.5f}")


@TRAINER_REGISTRY.register()
class TPT(Colour):
    """The checkout's TPT, not promptcal's."""


@TRAINER_REGISTRY.register()
class Shuffled(Colour):
    """Tests the images in an order that nobody knows."""

    def build_data_loader(self):
        super().build_data_loader()
        images = self.test_loader.dataset
        self.test_loader = torch.utils.data.DataLoader(images, batch_size=4, shuffle=True)
