import { expect, it } from 'vitest'
import { promptText } from '#shared/kinds/body-text.ts'

const part = (text: string) => ({ type: 'text', text })

it.each([
  [
    'the last user message',
    {
      messages: [
        { role: 'user', content: 'a' },
        { role: 'user', content: 'b' },
        { role: 'assistant', content: 'c' },
      ],
    },
    'b',
  ],
  [
    'the text parts of a message',
    { messages: [{ role: 'user', content: [part('a'), { type: 'image_url', image_url: {} }] }] },
    'a',
  ],
  [
    'an earlier user message if the last one has no text',
    {
      messages: [
        { role: 'user', content: 'a' },
        { role: 'user', content: [{ type: 'image_url' }] },
      ],
    },
    'a',
  ],
  [
    'the input of a response',
    {
      instructions: 'i',
      input: [{ role: 'user', content: [{ type: 'input_text', text: 'a' }] }, { type: 'function_call_output' }],
    },
    'a',
  ],
  ['a text to embed or speak', { input: 'a' }, 'a'],
  ['the last of several texts', { input: ['a', 'b'] }, 'b'],
  ['the prompt of a completion', { prompt: 'a' }, 'a'],
  ['the query of a ranking', { query: 'a', documents: ['b'] }, 'a'],
  [
    'the last user text of a stored generation',
    { turns: [{ role: 'user', parts: [{ type: 'text', text: 'a' }] }] },
    'a',
  ],
  ['the question of stored research', { question: 'a', context: [] }, 'a'],
  ['the Python code', { lang: 'python', code: 'print(1)' }, 'print(1)'],
  ['undefined for an input of tokens', { input: [[1, 2]] }, undefined],
  ['undefined for a body that is not an object', null, undefined],
])('the prompt of a request is %s', (_, body, text) => {
  expect(promptText(body)).toBe(text)
})
