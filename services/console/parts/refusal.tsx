/** What went wrong, told at once to who cannot see it; nothing where nothing did. */
export function Refusal({ of }: { readonly of: string }) {
  if (!of) return null
  return (
    <p class="refusal" role="alert">
      {of}
    </p>
  )
}
