from .data_manager import DataManager

__all__ = ["DataManager"]
