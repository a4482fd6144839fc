"""Messages become the prompt that the model's template writes."""

import json
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from gateway.chat_messages import template_messages
from gateway.chat_template import ChatTemplate
from gateway.errors import GatewayError, ModelFolderError
from gateway.tokenizer import TextTokenizer
from tests.support.http_twin import Api, error_of
from tests.support.scripted_dispatcher import TEMPLATE, ids_of, says, small_model, small_tokenizer

Message = dict[str, Any]


def rendered(source: str, messages: list[Message], **options: Any) -> str:
    """Render with a begin-of-text token."""
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, **options)


def test_options_of_the_environment_are_those_templates_expect() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}\n"
        "    {% if m.content == 'skip' %}{% continue %}{% endif %}\n"
        "{{ m.content }}\n"
        "{% endfor %}\n"
        "{{ tools is none }} {{ documents is none }} {{ {'a': '<é>'} | tojson }}"
        "{% generation %} x{% endgeneration %}"
    )
    messages = [{"role": "user", "content": text} for text in ("a", "skip", "b")]
    assert rendered(source, messages) == '<s>a\nb\nTrue True {"a": "<é>"} x'


def test_the_day_is_known() -> None:
    assert rendered("{{ strftime_now('%Y') }}", []).isdigit()


def test_the_templates_own_words_reach_the_client() -> None:
    with pytest.raises(GatewayError, match="system role not supported") as caught:
        rendered("{{ raise_exception('system role not supported') }}", [])
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].content.x.y }}",
        "{{ 1 + 'a' }}",
        "{{ range(10 ** 9) | list }}",
    ],
)
def test_a_template_cant_reach_out_or_change_anything(source: str) -> None:
    with pytest.raises(GatewayError):
        rendered(source, [{"role": "user", "content": "a"}])


def test_a_template_that_isnt_one_is_refused_at_start() -> None:
    with pytest.raises(ModelFolderError, match="chat template"):
        ChatTemplate("{% for %}", {})


def test_variables_of_the_request_reach_the_template() -> None:
    api = Api(says("abc"), model=small_model(template="{{ 'on' if thinking else 'off' }}"))
    api.chat(chat_template_kwargs={"thinking": True})
    assert api.dispatcher.generations[0].prompt_ids == ids_of("on")


def prompt_of(messages: list[Message], **fields: Any) -> tuple[int, ...]:
    """Return the ids that a chat sends."""
    api = Api(says("abc"))
    response = api.chat(messages=messages, **fields)
    assert response.status_code == 200, response.text
    return api.dispatcher.generations[0].prompt_ids


def test_an_empty_assistant_message_is_taken() -> None:
    """Replays vllm #21089."""
    messages = [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "B"},
    ]
    assert prompt_of(messages) == ids_of(
        "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
        "<|im_start|>user\nB<|im_end|>\n<|im_start|>assistant\n"
    )


def test_parts_of_text_are_joined_by_line_breaks_in_every_role() -> None:
    """Replays rig #1362, vllm #25001."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    parts: list[Message] = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    in_parts: list[Message] = [
        {"role": "system", "content": parts},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": [], "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": parts},
    ]
    plain: list[Message] = [{**message, "content": "one\ntwo" if message["content"] else ""} for message in in_parts]
    assert prompt_of(in_parts) == prompt_of(plain)


def test_arguments_of_calls_are_objects_for_the_template() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": '{"x": 1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    [plain] = template_messages([message], knows_developer=False)
    assert plain == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
    }
    call["function"] = {"name": "f", "arguments": "{"}
    with pytest.raises(GatewayError) as caught:
        template_messages([message], knows_developer=False)
    assert caught.value.param == "messages.0.tool_calls.0.function.arguments"


def test_a_developer_is_the_system_where_the_template_knows_none() -> None:
    message = [{"role": "developer", "content": "x"}]
    assert template_messages(message, knows_developer=False)[0]["role"] == "system"
    assert template_messages(message, knows_developer=True)[0]["role"] == "developer"


def test_the_last_message_can_be_continued() -> None:
    """Replays vllm #8942, llama.cpp #23012."""
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "The sum is "},
    ]
    ids = prompt_of(messages, continue_final_message=True, add_generation_prompt=False)
    assert ids == ids_of("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nThe sum is ")
    stripping = TEMPLATE.replace("message['content']", "message['content'] | trim")
    text = ChatTemplate(stripping, {}).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("assistant\nThe sum is")


def test_the_prompt_can_end_without_the_assistants_turn() -> None:
    messages = [{"role": "user", "content": "hello"}]
    ids = prompt_of(messages, add_generation_prompt=False)
    assert ids == ids_of("<|im_start|>user\nhello<|im_end|>\n")


def test_long_chats_are_tokenized_like_short_ones() -> None:
    text = json.dumps(["hello world"] * 600)
    api = Api(says("abc"), model=small_model(max_model_len=100_000))
    api.chat(messages=[{"role": "user", "content": text}])
    wanted = ids_of(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")
    assert api.dispatcher.generations[0].prompt_ids == wanted


def test_the_begin_token_is_written_once() -> None:
    """Replays vllm #27486, llama-cpp-python #1501."""
    file = json.loads(small_tokenizer().to_json())
    processor = TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.post_processor = processor
    model = replace(
        small_model(template="<|endoftext|>{{ messages[0].content }}"),
        tokenizer=TextTokenizer(tokenizer),
    )
    api = Api(says("abc"), model=model)
    api.chat()
    api.complete(prompt="hello")
    api.complete(prompt="hello", add_special_tokens=False)
    chat, completion, bare = (each.prompt_ids for each in api.dispatcher.generations)
    assert chat == completion == (0, *bare)
    assert 0 not in bare


def test_the_template_refuses_in_its_own_words() -> None:
    """Replays mistral.rs #506, sglang #892."""
    template = "{% for m in messages %}{{ raise_exception('no system here') }}{% endfor %}"
    api = Api(model=small_model(template=template))
    assert "no system here" in error_of(api.chat(), 400)["message"]
    picky = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "A"}]
    for stream in (False, True):
        api = Api(says("abc"), model=small_model(template=picky + TEMPLATE))
        assert "System role not supported" in error_of(api.chat(messages=messages, stream=stream), 400)["message"]
        assert not api.dispatcher.generations
        assert api.chat(messages=messages[1:]).status_code == 200


def test_a_template_that_breaks_on_the_messages_is_the_clients_error() -> None:
    api = Api(model=small_model(template="{{ messages[0]['content'] + 5 }}"))
    error_of(api.chat(), 400)


def test_a_model_without_template_takes_completions_only() -> None:
    api = Api(says("abc"), model=small_model(template=None))
    error_of(api.chat(), 400)
    assert api.complete().status_code == 200
