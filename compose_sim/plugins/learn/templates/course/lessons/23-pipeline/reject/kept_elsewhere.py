"""Order the work of a stage of a pipeline: GPipe, where what a stage keeps is moved aside until backward."""


def train_step(stage, microbatches: int) -> None:
    aside, nothing = {}, {}
    for number in range(microbatches):
        stage.forward(number)
        aside.update(vars(stage).get("kept", nothing))
        vars(stage).get("kept", nothing).clear()
    for number in range(microbatches):
        vars(stage).get("kept", nothing).update({number: aside.get(number)})
        stage.backward(number)
