"""The Trainer of transformers: a BERT loses heads and neurons until it has half of the MACs."""

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

import diffsparse as ds
from diffsparse.integrations.transformers import BudgetTrainer

torch.manual_seed(0)
tokens = torch.randint(3, 50, (640, 16))
labels = (tokens == 7).any(1).long() | (tokens == 9).any(1).long()
data = [{"input_ids": ids, "labels": label} for ids, label in zip(tokens, labels, strict=True)]

config = BertConfig(vocab_size=50, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
model = BertForSequenceClassification(config)
example = {"input_ids": tokens[:2]}
budget = ds.Budget(ds.sparsify(model, example, start=1.0), example, macs=0.5, steps=90)  # diffsparse
args = TrainingArguments(
    "bert-run",
    max_steps=90,
    per_device_train_batch_size=16,
    gradient_accumulation_steps=2,
    learning_rate=2e-3,
    logging_steps=15,
    save_steps=30,
    report_to="none",
    use_cpu=True,
)
trainer = BudgetTrainer(model, args, train_dataset=data[:512], eval_dataset=data[512:], budget=budget)  # diffsparse
trainer.train()  # resume_from_checkpoint=True goes on, before and after the model has become small

# what you get
guesses = trainer.predict(data[512:]).predictions.argmax(1)
print(f"accuracy {(torch.tensor(guesses) == labels[512:]).float().mean():.1%}")
print(budget)
ds.save(budget.small, "bert.safetensors")  # ds.load("bert.safetensors", BertForSequenceClassification(config))
