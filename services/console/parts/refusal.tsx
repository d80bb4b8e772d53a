/** An error text that screen readers announce at once; nothing if empty. */
export function Refusal({ of }: { readonly of: string }) {
  if (!of) return null
  return (
    <p class="refusal" role="alert">
      {of}
    </p>
  )
}
