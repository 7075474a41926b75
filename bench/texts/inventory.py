import json
from pathlib import Path


class Item:
    def __init__(self, name, price, quantity):
        self.name = name
        self.price = price
        self.quantity = quantity

    def total(self):
        return self.price * self.quantity

    def to_dict(self):
        return {"name": self.name, "price": self.price, "quantity": self.quantity}


class Store:
    def __init__(self, path):
        self.path = Path(path)
        self.items = {}

    def load(self):
        if not self.path.exists():
            return
        data = json.loads(self.path.read_text())
        for entry in data:
            item = Item(entry["name"], entry["price"], entry["quantity"])
            self.items[item.name] = item

    def save(self):
        data = [item.to_dict() for item in self.items.values()]
        self.path.write_text(json.dumps(data, indent=2))

    def add(self, name, price, quantity):
        if name in self.items:
            self.items[name].quantity += quantity
        else:
            self.items[name] = Item(name, price, quantity)

    def remove(self, name, quantity):
        item = self.items.get(name)
        if item is None:
            raise KeyError(name)
        if item.quantity < quantity:
            raise ValueError("not enough of " + name)
        item.quantity -= quantity
        if item.quantity == 0:
            del self.items[name]

    def total(self):
        return sum(item.total() for item in self.items.values())


def main():
    store = Store("items.json")
    store.load()
    store.add("rope", 12.5, 3)
    store.add("lamp", 30.0, 1)
    print(store.total())
    store.save()
